"""Edge to the node's files: is HAMi-core installed here, and a container's folder for its shared region."""

import os
import shutil

from deviceplugin.allocation import ContainerFacts, Hook, cache_directory

_LOCK_DIRECTORY = "/tmp/vgpulock"  # noqa: S108 - HAMi-core's own path
_OPEN_TO_ALL = 0o777
"""The container's user is unknown, and HAMi-core creates files in both folders."""


class HookUnusable(Exception):
    """HAMi-core is installed, but a folder it needs cannot be made."""


def find_hook(root: str) -> Hook | None:
    """HAMi-core below `<root>/vgpu`; None unless both library and preload list are there."""
    library, preload, licence = (f"{root}/vgpu/{name}" for name in ("libvgpu.so", "ld.so.preload", "license"))
    if not (os.path.isfile(library) and os.path.isfile(preload)):
        return None
    return Hook(root=root, library=library, preload=preload, license=licence if os.path.exists(licence) else "")


def prepare(hook: Hook, container: ContainerFacts) -> None:
    """Fresh folders for one container. Raises HookUnusable."""
    region = cache_directory(hook.root, container)
    try:
        shutil.rmtree(region, ignore_errors=True)
        for path in (region, _LOCK_DIRECTORY):
            os.makedirs(path, exist_ok=True)
            os.chmod(path, _OPEN_TO_ALL)
    except OSError as error:
        raise HookUnusable(f"cannot make {error.filename} for HAMi-core: {error.strerror}") from error
