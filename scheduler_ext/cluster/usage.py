"""Computes what is taken of each GPU of one node."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from proto.annotations.undecided_pods import Given
from proto.devices import MIG_MODE, Device, DeviceUUID, MigPlacement
from scheduler_ext.cluster.accounting import NOTHING, Footprint
from scheduler_ext.cluster.bound import counted_as_full, known_given, with_undecided
from scheduler_ext.cluster.records import GpuPart
from scheduler_ext.cluster.registered import RegisteredNode
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage


def left_of(
    used: Mapping[DeviceUUID, Footprint], gone: Sequence[GpuPart], others: Sequence[GpuPart]
) -> Mapping[DeviceUUID, Footprint]:
    """Returns what the `others` use. `used` is the sum of `gone` and `others`; the smaller group is summed, because a
    search for victims calls this often.
    """
    if len(gone) > len(others):
        return _summed(others)
    return {**used, **{device: used[device] - freed for device, freed in _summed(gone).items()}}


def _summed(held: Iterable[GpuPart]) -> dict[DeviceUUID, Footprint]:
    sums: dict[DeviceUUID, tuple[int, int, int]] = {}
    for part in held:
        for uuid, each in part.footprints.items():
            replicas, memory_mib, cores = sums.get(uuid, (0, 0, 0))
            sums[uuid] = replicas + each.replicas, memory_mib + each.memory_mib, cores + each.cores
    return {uuid: Footprint(*each) for uuid, each in sums.items()}


def usage_of(
    node: RegisteredNode, used: Mapping[DeviceUUID, Footprint], held: Iterable[GpuPart], kept: Sequence[GpuPart]
) -> NodeUsage:
    """Returns the usage of the node with its kept room. `used` is the sum of what is `held`, by GPU."""
    in_mig_mode = any(device.mode == MIG_MODE for device in node.devices)
    special = [each for each in (*held, *kept) if in_mig_mode or each.is_special]
    full = frozenset[DeviceUUID]().union(*(counted_as_full(each, node) for each in special))
    placements: dict[DeviceUUID, tuple[MigPlacement, ...]] = {}
    for each in special:
        for uuid, places in each.placements.items():
            placements[uuid] = (*placements.get(uuid, ()), *places)
    gpus = []
    for device in node.devices:
        uuid = device.uuid
        taken = used.get(uuid, NOTHING)
        if kept:
            taken = _beside(taken, (each.footprints.get(uuid, NOTHING) for each in kept), device)
        gpus.append(_gpu_usage(device, taken, placements.get(uuid, ()), full=uuid in full))
    undecided = [(each, known_given(each, node)) for each in special if each.undecided]
    return _with_undecided(node, gpus, undecided) if undecided else NodeUsage(node=node, gpus=tuple(gpus))


def _with_undecided(
    node: RegisteredNode, gpus: Sequence[GpuUsage], undecided: Sequence[tuple[GpuPart, Given]]
) -> NodeUsage:
    """Returns the usage with the replicas of pods without a decision, on the GPUs that are known to be given to them.
    Nothing limits a pod that runs: it takes all of its GPUs.
    """
    ids = sum(sum(given.values()) or each.undecided for each, given in undecided)
    replicas, whole = Counter[DeviceUUID](), set[DeviceUUID]()
    for each, given in undecided:
        replicas.update(given)
        if each.everywhere:
            whole |= given.keys()
    charged = with_undecided(gpus, ids, replicas)
    return NodeUsage(
        node=node,
        gpus=tuple(_filled(gpu) if gpu.device.uuid in whole else gpu for gpu in charged),
        undecided=tuple(sorted(each.pod for each, _ in undecided)),
    )


def _filled(gpu: GpuUsage) -> GpuUsage:
    used = Footprint(gpu.replicas, gpu.memory_mib, gpu.cores)
    return _gpu_usage(gpu.device, used, gpu.placements, full=True)


def _beside(used: Footprint, kept: Iterable[Footprint], device: Device) -> Footprint:
    """Returns what counts as taken of a GPU. Other pods may still hold kept room: together they take the whole GPU at
    most.
    """
    together = sum(kept, used)
    full = used | Footprint(device.replicas, device.memory_mib, device.cores)
    return Footprint(
        min(together.replicas, full.replicas),
        min(together.memory_mib, full.memory_mib),
        min(together.cores, full.cores),
    )


def _gpu_usage(device: Device, used: Footprint, placements: tuple[MigPlacement, ...], *, full: bool) -> GpuUsage:
    """Returns the usage of one GPU. If an unknown part of it is held, all of it counts as taken."""
    if full:
        used = used | Footprint(device.replicas, device.memory_mib, device.cores)
    return GpuUsage(device, used.replicas, used.memory_mib, used.cores, placements)
