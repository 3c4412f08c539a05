"""Edge to the file system: a folder goes, whatever strangers made in it."""

import os
from uuid import uuid4

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_folder(path: str, *, inside: int | None = None) -> None:
    """With all below it, never through a symbolic link. `inside`: the open folder it lies in. Raises OSError.

    `shutil.rmtree` takes a frame and a descriptor for every level, and whoever fills the folder chooses how many there
    are. Here what lies two levels down is moved up, until there is one level.
    """
    root = os.open(path, _OPEN, dir_fd=inside)
    try:
        names = os.listdir(root)
        while names:
            names += _take_apart(root, names.pop())
    finally:
        os.close(root)
    os.rmdir(path, dir_fd=inside)


def _take_apart(root: int, name: str) -> list[str]:
    """Remove one entry; the names that the full folders in it have now, beside it."""
    if _is_removed(root, name):
        return []
    moved: list[str] = []
    folder = os.open(name, _OPEN, dir_fd=root)
    try:
        for child in os.listdir(folder):
            if not _is_removed(folder, child):
                moved.append(uuid4().hex)
                os.rename(child, moved[-1], src_dir_fd=folder, dst_dir_fd=root)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=root)
    return moved


def _is_removed(folder: int, name: str) -> bool:
    """Anything but a folder that has something in it."""
    try:
        os.unlink(name, dir_fd=folder)
        return True
    except IsADirectoryError:
        pass
    try:
        os.rmdir(name, dir_fd=folder)
        return True
    except OSError:
        return False
