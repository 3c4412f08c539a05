"""Watches a folder for a file that appears, disappears or is replaced, with inotify (edge).

Source: inotify(7). The user's limit may be used up; then the caller has to poll.
"""

import asyncio
import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import suppress

_MASK = 0x40 | 0x80 | 0x100 | 0x200 | 0x800
"""`IN_MOVED_FROM`, `IN_MOVED_TO`, `IN_CREATE`, `IN_DELETE`, `IN_MOVE_SELF`."""
_EVENT = struct.Struct("iIII")
"""Watch, mask, cookie, bytes of the name that follows."""
_MANY_EVENTS = 64 * 1024
"""Bytes of one read; what does not fit comes with the next."""


class FolderWatch:
    """Watches the file with this name. One task waits at a time."""

    def __init__(self, folder: str, name: str) -> None:
        self._folder, self._name = os.fsencode(folder), os.fsencode(name)
        self._libc = ctypes.CDLL(None)
        self._file: int | None = None
        self._changed = asyncio.Event()

    def begin(self) -> bool:
        """Starts the watch, and returns whether changes from now on end `wait`. Call it before each `wait`, because the
        folder may have been replaced.
        """
        if self._file is None:
            file = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if file < 0:
                return False
            self._file = file
            asyncio.get_running_loop().add_reader(file, self._read, file)
        return bool(self._libc.inotify_add_watch(self._file, self._folder, _MASK) >= 0)

    async def wait(self, seconds: float) -> None:
        """Waits up to `seconds`, or until a change has been seen since the last wait."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        self._changed.clear()

    def close(self) -> None:
        if self._file is not None:
            asyncio.get_running_loop().remove_reader(self._file)
            os.close(self._file)
            self._file = None

    def _read(self, file: int) -> None:
        with suppress(BlockingIOError):
            # Kubelet writes its checkpoint there at every Allocate. An event without a name is about the folder, or
            # stands for events that were lost.
            if not {self._name, b""}.isdisjoint(_names(os.read(file, _MANY_EVENTS))):
                self._changed.set()


def _names(events: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(events):
        *_, length = _EVENT.unpack_from(events, at)
        at += _EVENT.size + length
        yield events[at - length : at].rstrip(b"\0")
