"""The names of HAMi-core's files below `<hook path>/vgpu`, and those that our installer makes."""

import re
from collections.abc import Collection

LIBRARY = "libvgpu.so"
PRELOAD = "ld.so.preload"
CONTAINERS = "containers"
LOCKS = "locks"
OVERRIDES = "overrides"
"""Folders with one folder for each container: for its region, its lock, and the limits that hold without its
environment.
"""
CONTAINER_FOLDERS = (CONTAINERS, LOCKS, OVERRIDES)
LOCK_DIRECTORY = "/tmp/vgpulock"  # noqa: S108 - HAMi-core's own path
"""The folder of a container's lock. HAMi's plugin has one folder of this name on the host, for all."""
_OURS = re.compile(r"libvgpu\.so\.[0-9a-f]{16}")
_DIGITS = 16


def library_name(digest: str) -> str:
    """Names the library with this content; `digest` is its SHA-256 in hexadecimal."""
    return f"{LIBRARY}.{digest[:_DIGITS]}"


def is_installed_library(name: str) -> bool:
    """Returns whether the library is one of ours, never one of HAMi's, which end in its version."""
    return _OURS.fullmatch(name) is not None


def installed_names(names: Collection[str]) -> tuple[str, ...]:
    """Returns the names in the folder that our installer made, a link before its target.

    Where a library of HAMi's own installer lies too, the files that both installers write under one name are left.
    """
    libraries = sorted(filter(is_installed_library, names))
    if not libraries:
        return ()
    hamis = any(name.startswith(f"{LIBRARY}.") and not is_installed_library(name) for name in names)
    shared = [] if hamis or PRELOAD not in names else [PRELOAD]
    return (*([LIBRARY] if LIBRARY in names else []), *libraries, *shared)
