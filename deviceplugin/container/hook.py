"""Edge to the node's files: is HAMi-core installed here, and the folders its containers write to."""

import os
from pathlib import Path

from deviceplugin.container.edits import ContainerFacts, Hook, cache_directory
from deviceplugin.container.folder_removal import remove_folder

LOCK_DIRECTORY = "/tmp/vgpulock"  # noqa: S108 - HAMi-core's own path
_OPEN_TO_ALL = 0o777
"""The container's user is unknown, and HAMi-core creates files in both folders. Not sticky: with
fs.protected_regular the kernel would refuse it a lock file that another user made."""


class HookUnusable(Exception):
    """HAMi-core is installed, but a folder it needs cannot be made."""


def find_hook(root: str) -> Hook | None:
    """HAMi-core below `<root>/vgpu`; None unless both library and preload list are there.

    The library is given by its versioned name, so that kubelet restarts a container with the one it started with.
    """
    folder = Path(root, "vgpu")
    library, preload, licence = _library(folder), folder / "ld.so.preload", folder / "license"
    if library is None or not preload.is_file():
        return None
    return Hook(root=root, library=str(library), preload=str(preload), license=str(licence) if licence.exists() else "")


def prepare(hook: Hook, container: ContainerFacts, *, lock_directory: str = LOCK_DIRECTORY) -> None:
    """A fresh folder for one container, and the lock's. Raises HookUnusable.

    Whatever lies in the container's folder is removed. No running container can own it: kubelet calls Allocate once
    for each container of a pod, before it first starts, and PreStartContainer before each start.
    """
    region = cache_directory(hook.root, container)
    if os.path.islink(region):
        raise HookUnusable(f"{region} is a symbolic link, which nobody but an intruder would put there; remove it")
    try:
        if os.path.lexists(region):
            remove_folder(region)
        os.makedirs(region)
        _open_to_all(region)
    except OSError as error:
        raise _unusable(region, error) from error
    make_lock_directory(lock_directory)


def make_lock_directory(path: str = LOCK_DIRECTORY) -> None:
    """Due at start as well: a reboot empties /tmp, and for the pods it brings back kubelet asks no Allocate; the
    container runtime would then make the folder for root alone. Raises HookUnusable.
    """
    try:
        os.makedirs(path, exist_ok=True)
        _open_to_all(path)
    except OSError as error:
        raise _unusable(path, error) from error


def _library(folder: Path) -> Path | None:
    """The target of our installer's link, else the file HAMi installed last, else its name before 2.5."""
    plain = folder / "libvgpu.so"
    try:
        if plain.is_symlink():
            return plain.resolve(strict=True)
        versions = sorted(folder.glob("libvgpu.so.*"), key=lambda path: path.stat().st_mtime_ns)
    except OSError:
        return None
    if versions:
        return versions[-1]
    return plain if plain.is_file() else None


def _open_to_all(path: str) -> None:
    """Never through a symbolic link: /tmp is everybody's."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.fchmod(folder, _OPEN_TO_ALL)
    finally:
        os.close(folder)


def _unusable(path: str, error: OSError) -> HookUnusable:
    return HookUnusable(f"cannot make {path} for HAMi-core: {error.strerror or error}")
