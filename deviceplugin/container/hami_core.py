"""Finds HAMi-core on this node, and prepares on the host what holds a container to its parts of GPUs (edge)."""

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from deviceplugin.container.container_folders import is_writable, make_fresh
from deviceplugin.container.edits import (
    PRELOAD_LIST,
    AllocationSettings,
    ContainerEdits,
    ContainerFacts,
    HamiCore,
    Hardware,
    NoHamiCore,
    cache_directory,
    container_edits,
    lock_directory,
    override_file,
    override_text,
)
from deviceplugin.container.hami_core_install import HEADER_BYTES, library_problem
from deviceplugin.container.hami_core_names import CONTAINER_FOLDERS, LIBRARY, PRELOAD
from deviceplugin.container.limit_folder import limit_folder, make_limit_folder
from deviceplugin.container.limit_hook import limit_hook
from deviceplugin.container.limits import Backends, Enforcement, enforcement, is_limited
from deviceplugin.settings import AgentSettings
from proto.annotations.node_limits import Backend
from proto.devices import ContainerShares, Device, DeviceUUID

_LONGEST_LIST = 4096
"""The most bytes of the list that are read."""
_SEPARATORS, _COMMENT = re.compile(r"[ \t\n:]+"), re.compile(r"#.*")
"""The list of libraries as glibc's loader reads it (dl_main in elf/rtld.c)."""


NOT_BY_SLOTS = "allocation is not by slots"
"""The reason why the driver holds nothing where Allocate answers at once."""


class CannotLimit(Exception):
    """Nothing can enforce a container's limits; one sentence."""


def find_hami_core(root: str) -> HamiCore | NoHamiCore:
    """Returns HAMi-core below `<root>/vgpu`, if its library can be loaded, the preload list names it, and folders for
    containers can be made. Blocks.

    The library is given by its versioned name, so that kubelet restarts a container with the one it started with.
    """
    folder = Path(root, "vgpu")
    plain, preload = folder / LIBRARY, folder / PRELOAD
    try:
        library = _library(folder)
        if library is None:
            return NoHamiCore(f"there is no {LIBRARY} in {folder}", is_damaged=preload.exists())
        if problem := _damage(library, preload, plain):
            return NoHamiCore(problem, is_damaged=True)
        for needed in (folder / name for name in CONTAINER_FOLDERS):
            if not is_writable(str(needed)):
                return NoHamiCore(f"{needed} cannot be written", is_damaged=True)
    except OSError as error:
        return NoHamiCore(f"{error.filename or folder} cannot be read: {error.strerror or error}", is_damaged=True)
    return HamiCore(root=root, library=str(library), preload=str(preload))


def damage(mounts: Mapping[str, str], root: str) -> str:
    """Returns why the HAMi-core files of a container no longer enforce its limits, as a sentence. Empty if they do, or
    if it has none. `mounts` maps the path in the container to the host's path. Blocks.
    """
    plain = Path(root, "vgpu", LIBRARY)
    library, preload = mounts.get(str(plain)), mounts.get(PRELOAD_LIST)
    try:
        if library is None or (preload is None and Path(library).is_file()):
            return ""
        problem = _damage(Path(library), Path(preload or library), plain)
    except OSError as error:
        problem = f"{error.filename or library} cannot be read: {error.strerror or error}"
    remedy = "install HAMi-core again, or delete the pod, and a new one gets the library that is installed"
    return problem and f"nothing would enforce this container's share of a GPU, because {problem}; {remedy}"


def prepared_edits(
    shares: ContainerShares,
    inventory: Mapping[DeviceUUID, Device],
    container: ContainerFacts,
    settings: AllocationSettings,
    hardware: Hardware,
    *,
    node: AgentSettings,
    no_driver: str = NOT_BY_SLOTS,
) -> ContainerEdits:
    """Returns the edits for one container, and makes its folders on the host. `no_driver` is why the driver holds
    nothing now, empty if it does. Blocks. Raises CannotLimit, also where nothing would hold the container to a part of
    a GPU and that is not allowed.
    """
    held = enforcement_for(shares, inventory, container, node, no_driver)
    edits = container_edits(
        *(shares, inventory, container, settings, held.hami_core), hardware=hardware, driver_mib=held.driver_mib
    )
    prepare(node.hook_path, container, edits.env, {mount.host_path for mount in edits.mounts})
    if not held.driver_mib:
        return edits
    folder = limit_folder(node.limits_folder, container)
    try:
        make_limit_folder(folder, held.driver_mib)
    except OSError as error:
        raise CannotLimit(f"cannot make {folder} for the driver's limits: {error.strerror or error}") from error
    return replace(edits, hooks=(limit_hook(folder),))


def enforcement_for(
    shares: ContainerShares,
    inventory: Mapping[DeviceUUID, Device],
    container: ContainerFacts,
    node: AgentSettings,
    no_driver: str = NOT_BY_SLOTS,
) -> Enforcement:
    """Returns what holds the container to its shares. Blocks. Raises CannotLimit where nothing would hold it to a part
    of a GPU and that is not allowed.
    """
    if not is_limited(shares, inventory):
        return Enforcement()
    before = _held_before(node, container)
    found = Backends(hami_core=find_hami_core(node.hook_path), no_driver=no_driver)
    container = replace(container, held_before=before)
    held = enforcement(shares, inventory, container, found.only(node.limits | before))
    if held.problem and not node.allows_unheld:
        raise CannotLimit(held.problem)
    return held


def _held_before(node: AgentSettings, container: ContainerFacts) -> frozenset[Backend]:
    """Returns what held the container when it ran: its folders stay as long as its pod. Blocks."""
    folders = {
        Backend.HAMI_CORE: cache_directory(node.hook_path, container),
        Backend.DRIVER: limit_folder(node.limits_folder, container),
    }
    return frozenset(each for each, folder in folders.items() if container.has_run and os.path.isdir(folder))


def ran_without(node: AgentSettings, container: ContainerFacts) -> bool:
    """Returns whether the container has run, and nothing held it to parts. Blocks."""
    return container.has_run and not _held_before(node, container)


def prepare(root: str, container: ContainerFacts, env: Mapping[str, str], mounted: Collection[str]) -> None:
    """Makes new what a container mounts of its own: the folders for its region and for the lock of its processes, and
    the file with its limits. `env` and `mounted`, paths of the host, are what the container is given. Blocks. Raises
    CannotLimit.

    What was there before is moved aside. It belongs to no running container: kubelet calls Allocate once for each
    container of a pod, before it first starts, and PreStartContainer before each start.
    """
    override = override_file(root, container)
    for path in (cache_directory(root, container), lock_directory(root, container), override):
        if path not in mounted:
            continue
        try:
            if path == override:
                _write_override(Path(path), override_text(env))
            else:
                make_fresh(path)
        except OSError as error:
            raise CannotLimit(f"cannot make {path} for HAMi-core: {error.strerror or error}") from error


def _write_override(path: Path, text: str) -> None:
    """Writes without making it durable: after a crash of the node its containers start again, each with a new file."""
    make_fresh(str(path.parent), mode=0o755)
    path.write_text(text)
    path.chmod(0o644)


def _damage(library: Path, preload: Path, plain: Path) -> str:
    """Returns why these do not load the library under its name in containers, `plain`; empty if they do. Raises
    OSError.
    """
    if not preload.is_file():
        return f"{library} exists, but {preload} is missing"
    with library.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        problem = library_problem(file.read(HEADER_BYTES), size, os.uname().machine)
    if problem:
        return f"{library} {problem}"
    with preload.open("rb") as file:
        text = file.read(_LONGEST_LIST).decode(errors="replace")
    return "" if str(plain) in _SEPARATORS.split(_COMMENT.sub("", text)) else f"{preload} does not name {plain}"


def _library(folder: Path) -> Path | None:
    """Returns the target of our installer's link, else the file that HAMi installed last, else its name before 2.5."""
    plain = folder / LIBRARY
    if plain.is_symlink():
        return plain.resolve(strict=True) if plain.exists() else None
    versions = sorted(folder.glob(f"{LIBRARY}.*"), key=lambda path: path.stat().st_mtime_ns)
    if versions:
        return versions[-1]
    return plain if plain.is_file() else None
