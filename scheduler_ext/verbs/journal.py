"""Keeps sent and unanswered Bindings in files, for the process after one that was killed.

Each file is written before its Binding is sent. So a file that cannot be read was cut short, and nothing was sent for
it. The folder must last exactly as long as the page cache, as an emptyDir in memory does: nothing is synchronised.
"""

import fcntl
import hashlib
import logging
import os
from pathlib import Path
from uuid import UUID, uuid4

import msgspec

from proto.decoding import decoded
from scheduler_ext.settings import SettingsError
from scheduler_ext.verbs.state_machine import SentBinding

log = logging.getLogger(__name__)

_PROCESS = "process"
_UNFINISHED = "unfinished"
_SUFFIX = ".json"


class JournalFiles:
    """The folder, locked until it is closed or the process ends."""

    def __init__(self, folder: Path) -> None:
        """Locks the folder and reads its files. Raises SettingsError if it cannot be used, or another process
        uses it.
        """
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / _PROCESS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.process = self._name()
            self.left = self._read()
        except BlockingIOError as error:
            raise SettingsError(f"{folder} is in use by another extender: give each a folder of its own") from error
        except OSError as error:
            raise SettingsError(f"{folder} cannot hold the Bindings under way: {error.strerror}") from error

    def close(self) -> None:
        """Unlocks the folder, so that another process may use it."""
        os.close(self._lock)

    def add(self, sent: SentBinding) -> None:
        """Writes a file. Raises OSError."""
        # The pod's previous file stays until this one is complete.
        unfinished = self._folder / _UNFINISHED
        unfinished.write_bytes(msgspec.json.encode(sent))
        unfinished.replace(self._file(sent.uid))

    def remove(self, uid: str) -> None:
        self._unlink(self._file(uid))

    def clear(self) -> None:
        """Removes every file."""
        for file in self._folder.glob(f"*{_SUFFIX}"):
            self._unlink(file)

    def _name(self) -> str:
        """Returns the folder's name: a UUID, the same for every process that continues with this folder."""
        written = os.read(self._lock, 100).decode(errors="replace")
        try:
            return str(UUID(written))
        except ValueError:
            name = str(uuid4())
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, name.encode(), 0)
            return name

    def _read(self) -> tuple[SentBinding, ...]:
        """Returns the Bindings that the previous process left, and removes files that cannot be read."""
        found = []
        for file in self._folder.glob(f"*{_SUFFIX}"):
            try:
                found.append(decoded(file.read_bytes(), SentBinding))
            except msgspec.DecodeError:
                file.unlink()
        return tuple(found)

    def _unlink(self, file: Path) -> None:
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s cannot be removed: %s", file, error.strerror)

    def _file(self, uid: str) -> Path:
        return self._folder / (hashlib.sha256(uid.encode()).hexdigest() + _SUFFIX)
