"""Installs HAMi-core where containers mount it from, without changing a file that a container may use.

The library gets a name made of its content, and `libvgpu.so` is a symbolic link to it that is switched by rename. What
is replaced under a fixed name is replaced by rename too. So a running container keeps the file it has mapped,
and a crash at any moment leaves either the old or the new installation.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from deviceplugin.container.atomic_file import locked, sync_directory, write_atomically
from deviceplugin.container.container_folders import make_closed
from deviceplugin.container.hami_core_names import (
    CONTAINERS,
    LIBRARY,
    PRELOAD,
    is_installed_library,
    library_name,
)

KEPT_LIBRARIES = 2
_MODE = 0o644
HEADER_BYTES = 64
"""The size of the header of a 64-bit ELF file."""
_SHARED_OBJECT = 3
MACHINES = {"x86_64": 62, "aarch64": 183}
"""e_machine of the ELF specification by the kernel's word."""


class CannotInstall(Exception):
    """One sentence: what is wrong, where, what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    library: Path
    """The library that `libvgpu.so` now leads to."""
    changed: tuple[str, ...]
    """Names that were written, in order; empty if everything was up to date."""
    removed: tuple[str, ...]
    """Removed libraries, which no container should need."""


def install_hami_core(source: Path, root: Path, *, machine: str, keep: int = KEPT_LIBRARIES) -> Installation:
    """Install what `source` holds below `<root>/vgpu`. Raises CannotInstall.

    `keep` libraries installed before the current one stay: kubelet restarts a container with the library it started
    with. A process that maps a removed one is not disturbed, but its container can no longer be restarted in place.
    """
    content = _read_library(source, machine)
    folder = root / "vgpu"
    try:
        make_closed(str(folder / CONTAINERS))
        with locked(folder):
            for each in (LIBRARY, PRELOAD):
                _make_way(folder / each)
            name = library_name(hashlib.sha256(content).hexdigest())
            changed = [name] if _put(folder / name, content) else []
            if _put(folder / PRELOAD, f"{folder}/{LIBRARY}\n".encode()):
                changed.append(PRELOAD)
            if _switch(folder / LIBRARY, name):
                changed.append(LIBRARY)
            removed = _collect(folder, name, keep)
    except OSError as error:
        place = error.filename or folder
        raise CannotInstall(f"Cannot install HAMi-core in {folder}: {place}: {error.strerror}.") from error
    return Installation(library=folder / name, changed=tuple(changed), removed=removed)


def library_problem(header: bytes, size: int, machine: str) -> str:
    """Returns why a file of `size` bytes is no shared object for `machine` (as `uname -m` has it); empty if it is one.

    Offsets are those of a 64-bit little-endian header in the ELF specification.
    """
    if len(header) < HEADER_BYTES or not header.startswith(b"\x7fELF"):
        return "is not an ELF file"
    if machine not in MACHINES:
        return f"cannot be checked: HAMi-core exists for {' and '.join(MACHINES)}, and this machine is {machine}"
    if header[4:6] != b"\x02\x01" or _number(header, 18, 2) != MACHINES[machine]:
        return f"was built for another machine than this one, {machine}"
    if _number(header, 16, 2) != _SHARED_OBJECT:
        return "is not a shared object"
    if _number(header, 40, 8) + _number(header, 58, 2) * _number(header, 60, 2) > size:
        return "is cut off: its section table is beyond its end"
    return ""


def _read_library(source: Path, machine: str) -> bytes:
    """Returns the content of `libvgpu.so`, or of the only file with a version after that name, as in HAMi's image.
    Raises CannotInstall.
    """
    plain = source / LIBRARY
    found = [plain] if plain.exists() else sorted(source.glob(f"{LIBRARY}.*"))
    if len(found) != 1:
        problem = f"several libraries: {', '.join(path.name for path in found)}" if found else f"no {LIBRARY}"
        raise CannotInstall(f"{source} holds {problem}; name the folder that holds one HAMi-core library.")
    try:
        content = found[0].read_bytes()
    except OSError as error:
        raise CannotInstall(f"{found[0]} cannot be read: {error.strerror}.") from error
    problem = library_problem(content[:HEADER_BYTES], len(content), machine)
    if problem:
        raise CannotInstall(f"{found[0]} {problem}; name the folder that holds HAMi-core's {LIBRARY}.")
    return content


def _number(header: bytes, offset: int, size: int) -> int:
    return int.from_bytes(header[offset : offset + size], "little")


def _make_way(path: Path) -> None:
    """Removes an empty folder in place of a file: a runtime makes one if a container mounts the file before it is
    there. Raises CannotInstall if something is in it.
    """
    if path.is_symlink() or not path.is_dir():
        return
    try:
        path.rmdir()
    except OSError as error:
        problem = f"{path} is a folder and cannot be removed: {error.strerror}"
        raise CannotInstall(f"{problem}. Move it away and run this again; a file belongs there.") from error


def _put(path: Path, content: bytes) -> bool:
    """Writes the file and returns whether it is new. The same file stays, with its inode."""
    there = path.is_file() and not path.is_symlink()
    if there and path.stat().st_mode & 0o777 == _MODE and path.read_bytes() == content:
        return False
    write_atomically(path, content, _MODE)
    return True


def _switch(link: Path, name: str) -> bool:
    if link.is_symlink() and os.readlink(link) == name:
        return False
    fresh = link.with_name(f".{link.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(name)
    os.replace(fresh, link)
    sync_directory(link.parent)
    return True


def _collect(folder: Path, current: str, keep: int) -> tuple[str, ...]:
    """Removes old libraries, only those that this installer makes, never HAMi's; returns their names."""
    earlier = [path for path in folder.iterdir() if is_installed_library(path.name) and path.name != current]
    earlier.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in earlier[keep:]:
        path.unlink()
    return tuple(path.name for path in earlier[keep:])
