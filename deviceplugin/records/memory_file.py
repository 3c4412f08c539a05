"""Reads and writes the file with the daemon's memory, and reads the kernel's id of this boot (edge).

It is in a subfolder of the folder with the slots' specs: every DaemonSet mounts that one, a reboot empties it, and
container runtimes neither read nor watch its subfolders.
"""

import logging
import os
import stat
from pathlib import Path

from deviceplugin.container.atomic_file import locked, write_atomically
from deviceplugin.records.memory import MEMORY_FOLDER, Memory, MemoryUnreadable, decode_memory, encode_memory

log = logging.getLogger(__name__)

_NAME = "memory.json"
_LARGEST_BYTES = 16 << 20
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class MemoryFile:
    """Every method blocks."""

    def __init__(self, cdi_directory: str) -> None:
        self.path = Path(cdi_directory, MEMORY_FOLDER, _NAME)
        self._problem = ""

    def boot(self) -> str:
        """Returns the boot id; empty if the kernel does not report it."""
        try:
            return _BOOT_ID.read_text().strip()
        except OSError:
            return ""

    def read(self) -> Memory | None:
        """Reads the memory; None if there is none, or if another user could have written it."""
        try:
            return decode_memory(self._read_own())
        except FileNotFoundError:
            return None
        except MemoryUnreadable as error:
            log.warning("%s %s; it is not used", self.path, error)
        except OSError as error:
            log.warning("%s cannot be read: %s; it is not used", self.path, error.strerror)
        return None

    def write(self, memory: Memory) -> bool:
        """Writes the memory, and returns whether it is there, whole. A failure is logged once."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(self.path.parent):
                write_atomically(self.path, encode_memory(memory), 0o600)
        except OSError as error:
            problem = error.strerror or str(error)
            if problem != self._problem:
                self._problem = problem
                hint = "a daemon that starts while the API server is away cannot serve"
                log.warning("%s cannot be written: %s; %s", self.path, problem, hint)
            return False
        self._problem = ""
        return True

    def _read_own(self) -> bytes:
        """Raises OSError and MemoryUnreadable."""
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            _refuse_others(os.fstat(folder), "lies in a folder that")
            # Non-blocking: a pipe in its place must not block the daemon.
            descriptor = os.open(self.path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        finally:
            os.close(folder)
        with open(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise MemoryUnreadable("is no regular file")
            _refuse_others(found, "")
            if found.st_size > _LARGEST_BYTES:
                raise MemoryUnreadable(f"has {found.st_size} bytes")
            return file.read(_LARGEST_BYTES)


def _refuse_others(found: os.stat_result, subject: str) -> None:
    """Raises MemoryUnreadable."""
    problem = ""
    if found.st_uid != os.geteuid():
        problem = f"belongs to user {found.st_uid}"
    elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        problem = "others may write"
    if problem:
        raise MemoryUnreadable(f"{subject} {problem}".strip())
