"""Decides which shares of GPUs need HAMi-core, and which of them it holds."""

from collections.abc import Mapping

from deviceplugin.container.edits import ContainerFacts, HamiCore, NoHamiCore
from deviceplugin.settings import UnenforcedShares
from proto.annotations.node_limits import NodeLimits
from proto.devices import ContainerShares, Device, DeviceShare, DeviceUUID
from proto.environment import DISABLE_CONTROL, lifted_by


def limits_of(found: HamiCore | NoHamiCore, unenforced: UnenforcedShares) -> NodeLimits:
    """Returns what enforces the shares of containers on this node."""
    allowed = unenforced is UnenforcedShares.ALLOW
    if isinstance(found, HamiCore):
        return NodeLimits.PARTLY_ENFORCED if allowed else NodeLimits.HAMI_CORE
    return NodeLimits.UNENFORCED if allowed else NodeLimits.NONE


def is_limited(shares: ContainerShares, inventory: Mapping[DeviceUUID, Device]) -> bool:
    """Returns whether these shares need HAMi-core: whether one of them is a part of a GPU.

    MIG instances do not need it: the hardware limits a container to its instance. Nor do whole GPUs, and it would harm
    them: it counts the first GPU that a process sees as the container's first. Of several workers with a GPU each, only
    one would get memory.
    """
    return _first_part(shares, inventory) is not None


def must_be_limited(shares: ContainerShares, inventory: Mapping[DeviceUUID, Device], allowed: UnenforcedShares) -> bool:
    """Returns whether a container that lifts its limits must not start."""
    return allowed is UnenforcedShares.REFUSE and is_limited(shares, inventory)


def unenforced(
    shares: ContainerShares, inventory: Mapping[DeviceUUID, Device], container: ContainerFacts, no_hami_core: str
) -> str:
    """Returns why nothing would enforce the container's shares, as a sentence; empty if something does, or need not.

    `no_hami_core` is why HAMi-core is missing on this node, empty if it is installed. HAMi-core does not hold a process
    to parts of several GPUs once CUDA_VISIBLE_DEVICES chooses among them, as launchers of one process for each GPU do.
    A container that has run with them is not refused at its restart.
    """
    part = _first_part(shares, inventory)
    if part is None:
        return ""
    if DISABLE_CONTROL in lifted_by(container.env):
        why, remedy = f"{DISABLE_CONTROL} turns its limits off", f"remove {DISABLE_CONTROL}"
    elif no_hami_core:
        why, remedy = f"HAMi-core does not limit containers on this node ({no_hami_core})", "install HAMi-core"
    elif len(shares) > 1 and not container.has_run:
        why = f"HAMi-core does not hold a container to parts of several GPUs, here of {len(shares)}"
        remedy = "ask for one GPU in each container"
    else:
        return ""
    amounts = f"{_memory_mib(part, inventory)} MiB" + (f", {part.cores} %" if part.cores else "")
    return (
        f"container {container.name} was given a part of {part.uuid} ({amounts}), and {why}; ask for whole GPUs, "
        f"{remedy}, or set the daemon's unenforced_shares to allow"
    )


def _first_part(shares: ContainerShares, inventory: Mapping[DeviceUUID, Device]) -> DeviceShare | None:
    return next(
        (each for each in shares if inventory[each.uuid].is_part(_memory_mib(each, inventory), each.cores)), None
    )


def _memory_mib(share: DeviceShare, inventory: Mapping[DeviceUUID, Device]) -> int:
    """Returns the memory of a share in MiB; a share without a size is the whole GPU."""
    return share.memory_mib or inventory[share.uuid].memory_mib
