"""Removes a folder, whatever tenants created in it (edge)."""

import os
from collections.abc import Generator, Iterator
from contextlib import suppress
from uuid import uuid4

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_folder(path: str) -> None:
    """Removes a folder with all below it, never through a symbolic link. Raises OSError."""
    for _ in removing(path):
        pass


def removing(path: str, *, inside: int | None = None) -> Iterator[None]:
    """Removes a folder one entry at a time: a caller that stops halfway has made progress and can start again. `inside`
    is its open parent folder.

    The tenant that fills the folder chooses the number of entries and levels. So no folder is listed as a whole, and
    full folders are moved up until there is one level. `shutil.rmtree` holds every name of a folder in memory, and a
    frame and a descriptor for every level. Entries that cannot be removed are skipped, and the error is raised at the
    end.
    """
    root = os.open(path, _OPEN, dir_fd=inside)
    try:
        while (yield from _pass_over(root)):
            pass
    finally:
        os.close(root)
    os.rmdir(path, dir_fd=inside)


def _pass_over(root: int) -> Generator[None, None, bool]:
    """Removes what one walk finds, and returns whether another may find more. Raises OSError if nothing could be
    removed.
    """
    removed, problem = False, None
    with os.scandir(root) as entries:
        for entry in entries:
            try:
                yield from take_apart(root, entry.name)
                removed = True
            except OSError as error:
                problem = error
    if problem is not None and not removed:
        raise problem
    return removed


def take_apart(root: int, name: str) -> Iterator[None]:
    """Removes one entry of an open folder; the full folders in it are moved beside it. Raises OSError."""
    if not _is_removed(root, name):
        folder = os.open(name, _OPEN, dir_fd=root)
        try:
            with os.scandir(folder) as children:
                for child in children:
                    if not _is_removed(folder, child.name):
                        os.rename(child.name, uuid4().hex, src_dir_fd=folder, dst_dir_fd=root)
                    yield
        finally:
            os.close(folder)
        with suppress(FileNotFoundError):
            os.rmdir(name, dir_fd=root)
    yield


def _is_removed(folder: int, name: str) -> bool:
    """Removes a file or an empty folder, and returns whether it is gone."""
    try:
        os.unlink(name, dir_fd=folder)
        return True
    except FileNotFoundError:
        return True
    except IsADirectoryError:
        pass
    try:
        os.rmdir(name, dir_fd=folder)
        return True
    except OSError:
        return False
