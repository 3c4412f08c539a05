"""Edge to the node's files: is HAMi-core installed here, and the folders its containers write to."""

from pathlib import Path

from deviceplugin.container.container_folders import make_fresh
from deviceplugin.container.edits import ContainerFacts, Hook, cache_directory, lock_directory


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


def prepare(hook: Hook, container: ContainerFacts) -> None:
    """Two empty folders for one container: for its region, and for the lock of its processes. Raises HookUnusable.

    What lay there before is put aside. No running container can own it: kubelet calls Allocate once for each container
    of a pod, before it first starts, and PreStartContainer before each start.
    """
    for path in (cache_directory(hook.root, container), lock_directory(hook.root, container)):
        try:
            make_fresh(path)
        except OSError as error:
            raise HookUnusable(f"cannot make {path} for HAMi-core: {error.strerror or error}") from error


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
