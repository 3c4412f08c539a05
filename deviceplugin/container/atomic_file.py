"""Writes a file whole or not at all, even in a crash (edge)."""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOCK_SECONDS = 10.0
"""A daemon that is stopped, or whose disk hangs, may keep a lock for ever."""
_LOCK_PAUSE_SECONDS = 0.01


def write_atomically(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Replaces `path`; processes that have the old file open or mapped keep it. One writer per path: see `locked`.
    Raises OSError.
    """
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.replace(fresh, path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


@contextmanager
def locked(directory: Path, seconds: float = _LOCK_SECONDS) -> Iterator[None]:
    """Keeps other daemons from writing in the folder: two run on a node while one replaces the other. Blocks for
    `seconds` at most. Raises OSError.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _lock(descriptor, time.monotonic() + seconds)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, deadline: float) -> None:
    """Raises OSError."""
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise TimeoutError(errno.ETIMEDOUT, "another daemon keeps its folder locked") from None
            time.sleep(_LOCK_PAUSE_SECONDS)
        else:
            return


def sync_directory(path: Path) -> None:
    """Makes the names in a folder survive a power cut. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
