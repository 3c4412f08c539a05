"""Computes what is taken of each GPU of one node, and what would be if some of its pods were gone."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from msgspec.structs import replace as with_fields

from proto.annotations.node_numa import TopologyScope
from proto.annotations.undecided_pods import Given
from proto.devices import MIG_MODE, Device, DeviceUUID, MigPlacement
from scheduler_ext.cluster.accounting import NOTHING, Footprint, taken_cpus
from scheduler_ext.cluster.quotas import Quotas
from scheduler_ext.cluster.records import GpuPart, PodRecord
from scheduler_ext.cluster.registered import RegisteredNode
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage, Quota, Snapshot


def summed(held: Iterable[GpuPart]) -> Mapping[DeviceUUID, Footprint]:
    """Returns what these parts use together, by GPU."""
    sums: dict[DeviceUUID, tuple[int, int, int]] = {}
    for part in held:
        for uuid, each in part.footprints.items():
            replicas, memory_mib, cores = sums.get(uuid, (0, 0, 0))
            sums[uuid] = replicas + each.replicas, memory_mib + each.memory_mib, cores + each.cores
    return {uuid: Footprint(*each) for uuid, each in sums.items()}


def left_of(
    used: Mapping[DeviceUUID, Footprint], gone: Sequence[GpuPart], others: Sequence[GpuPart]
) -> Mapping[DeviceUUID, Footprint]:
    """Returns what the `others` use. `used` is the sum of `gone` and `others`; the smaller group is summed, because a
    search for victims calls this often.
    """
    if len(gone) > len(others):
        return summed(others)
    return {**used, **{device: used[device] - freed for device, freed in summed(gone).items()}}


def usage_of(
    node: RegisteredNode, used: Mapping[DeviceUUID, Footprint], held: Collection[GpuPart], kept: Sequence[GpuPart]
) -> NodeUsage:
    """Returns the usage of the node with its kept room. `used` is the sum of what is held, by GPU. Parts with nothing
    else that matters may be missing in `held`.
    """
    in_mig_mode = any(device.mode == MIG_MODE for device in node.devices)
    special = [each for each in (*held, *kept) if in_mig_mode or each.is_special]
    full = frozenset[DeviceUUID]().union(*(_counted_as_full(each, node) for each in special))
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
    undecided = [(each, _known_given(each, node)) for each in special if each.undecided]
    usage = _with_undecided(node, gpus, undecided) if undecided else NodeUsage(node=node, gpus=tuple(gpus))
    return replace(usage, free_cpus=_free_cpus(node, held)) if node.numa is not None and node.numa.zones else usage


def _free_cpus(node: RegisteredNode, held: Iterable[GpuPart]) -> Mapping[int, int]:
    """Returns the CPUs of each NUMA node that no pod has. Where containers are aligned one by one, those without GPUs
    may be anywhere: the daemon takes their CPUs away.
    """
    free = {} if node.numa is None else {number: zone.free for number, zone in node.numa.zones.items()}
    numa = {device.uuid: device.numa for device in node.devices}
    is_whole = node.numa is not None and node.numa.scope is TopologyScope.POD
    for part in held:
        if part.pinned:
            for zone, taken in taken_cpus(part.pinned, numa, free, is_whole=is_whole).items():
                free[zone] = max(free[zone] - taken, 0)
    return free


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
    charged = _with_replicas(gpus, ids, replicas)
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


def _counted_as_full(part: GpuPart, node: RegisteredNode) -> frozenset[DeviceUUID]:
    """Returns the GPUs where it is unknown what the part leaves.

    These are all GPUs if nothing is known of the part. Of an unreadable annotation they are those that it names, or
    all if it names too few. Of other parts they are those in MIG mode where its instances are unknown, and those not
    in MIG mode where it has instances.
    """
    devices = node.devices
    if part.everywhere:
        return frozenset() if _known_given(part, node) else frozenset(device.uuid for device in devices)
    if part.unreadable:
        named = frozenset(device.uuid for device in devices if device.uuid in part.unreadable)
        return named if len(named) >= max(part.wanted, 1) else frozenset(device.uuid for device in devices)
    return frozenset(
        device.uuid
        for device in devices
        if device.uuid in part.footprints and (device.uuid in part.placements) != (device.mode == MIG_MODE)
    )


def _known_given(part: GpuPart, node: RegisteredNode) -> Given:
    """Returns the replicas that kubelet gave the pod of each GPU, as the node's daemon reports it. Empty if it reports
    nothing or too little.
    """
    given = node.given.get(part.uid, {}) if part.undecided else {}
    known = given.keys() <= {device.uuid for device in node.devices}
    return given if known and sum(given.values()) >= part.undecided else {}


def _with_replicas(gpus: Iterable[GpuUsage], ids: int, given: Given) -> tuple[GpuUsage, ...]:
    """Returns the GPUs with `ids` more replicas in use. The replicas of the GPUs `given` come first. Each further one
    is on the GPU with the most replicas left; of equals the first one counts.

    Kubelet counts ids of all the node's GPUs together. A container with a decision has the GPUs of that decision,
    whatever its ids are. So any GPUs with replicas left can represent those that it took from.
    """
    charged = []
    for gpu in gpus:
        taken = min(given.get(gpu.device.uuid, 0), max(gpu.device.replicas - gpu.replicas, 0))
        charged.append(with_fields(gpu, replicas=gpu.replicas + taken) if taken else gpu)
        ids -= taken
    for _ in range(min(ids, sum(max(gpu.device.replicas - gpu.replicas, 0) for gpu in charged))):
        emptiest = max(range(len(charged)), key=lambda at: (charged[at].device.replicas - charged[at].replicas, -at))
        charged[emptiest] = with_fields(charged[emptiest], replicas=charged[emptiest].replicas + 1)
    return tuple(charged)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAlone:
    """The node as the ledger had it at one moment: a long search sees the same node throughout.

    `used` is the sum of `held`, by pod UID. `kept` is the room that counts beside it, by pod UID. `quotas` are those of
    one namespace.
    """

    node: RegisteredNode
    used: Mapping[DeviceUUID, Footprint]
    held: Mapping[str, PodRecord]
    kept: Mapping[str, PodRecord]
    quotas: Quotas

    def usage(self, gone: Collection[str], *, at_least: float = -inf) -> NodeUsage:
        """Computes the usage as if these pods held nothing, and room were kept only for others of at least this
        priority.
        """
        name = self.node.name
        freed = [self.held[uid].on(name) for uid in gone if uid in self.held]
        others = [record.on(name) for uid, record in self.held.items() if uid not in gone]
        kept = [room.gpus for uid, room in self.kept.items() if room.priority >= at_least and uid not in gone]
        return usage_of(self.node, left_of(self.used, freed, others), others, kept)

    def without(self, gone: Collection[str], namespace: str, *, priority: int) -> Snapshot:
        """Returns this node, and this namespace's quotas, as a pod of this priority would find them if these pods were
        gone. Room kept for pods of lower priority is free for it.
        """
        usage = self.usage(gone, at_least=priority)
        return Snapshot(nodes={self.node.name: usage}, quotas={namespace: self.quotas_of(namespace, gone)})

    def quotas_of(self, namespace: str, gone: Collection[str]) -> tuple[Quota, ...]:
        """Returns the quotas as if these pods held nothing."""
        return self.quotas.of(namespace, (self.held[uid] for uid in gone if uid in self.held))
