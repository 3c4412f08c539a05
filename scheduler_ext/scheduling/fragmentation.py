"""Measures, in GPUs, what a node strands for the pods that usually come. Less is better.

The measure is the sum of three parts:

1. GPU capacity that no popular class could use, weighted by popularity. This is fragmentation as FGD defines it (Weng
et al., Beware of Fragmentation, USENIX ATC '23).

2. GPUs that will be left over because the node has too little CPU or memory for them, by what popular pods ask for
beside a GPU.

3. A higher weight for free GPUs of a type in higher demand than others: some pods can use no other type.

A pod goes where the sum grows least.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp
from typing import Any, NamedTuple

from proto.devices import MIG_MODE, VENDOR, PairScores, PodShares
from proto.kubernetes.requests import HostAmount
from scheduler_ext.cluster.accounting import effective
from scheduler_ext.cluster.registered import RegisteredNode
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage
from scheduler_ext.cluster.workload import PodClass, Popular, Workload
from scheduler_ext.policies import GpuPolicy
from scheduler_ext.requests import ContainerNeed, DeviceFilter, GpuRequest
from scheduler_ext.scheduling.effort import Effort
from scheduler_ext.scheduling.fit import MIG_EFFORT, Rules, why_not

HIGHEST_LEVEL = 100
"""The level of the best placement."""
MOST_REMEMBERED = 20_000
"""Entries remembered in each cache."""


class _Gpu(NamedTuple):
    """One GPU. `left` is its free fraction of memory or of cores, whichever is less, and `worth` the weight of that.
    `serves` has a bit for each class whose containers fit on it.
    """

    left: float
    serves: int
    worth: float


@dataclass(frozen=True, slots=True)
class _Several:
    """A class whose pods take several GPUs each."""

    bit: int
    count: int
    share: float
    linked: bool


class Fragmentation:
    """Measures placements for one workload, and remembers what it computed. `effort` counts the work."""

    def __init__(self, workload: Workload) -> None:
        self.effort = Effort()
        self._workload = workload
        # Of a type that came since the pods were last weighed.
        self._usual_worth = 1.0 if workload.pressure else 0.0
        self._wanted = tuple(_wanted(each.pods) for each in workload.classes)
        self._several = tuple(
            _Several(1 << number, each.pods.need.count, each.share, each.pods.linked)
            for number, each in enumerate(workload.classes)
            if each.pods.need.count > 1
        )
        self._singles = ~sum(each.bit for each in self._several)
        self._gpus: dict[object, _Gpu] = {}
        self._shares: dict[int, float] = {}
        """The summed popularity of the classes with these bits."""
        self._hosts: dict[HostAmount, int] = {}
        self._islands: dict[str, tuple[PairScores, Sequence[Sequence[int]]]] = {}

    @property
    def workload(self) -> Workload:
        return self._workload

    def level(self, request: GpuRequest, usage: NodeUsage, shares: PodShares, room: HostAmount | None) -> int:
        """How good this placement is, from 0 to `HIGHEST_LEVEL`; 50 strands nothing and frees nothing.

        `room` is what is left of the node's CPU and memory, None if unknown. The steps are those of FGD: without them a
        hundredth of a GPU would outweigh a fuller node.
        """
        gain = self.stranded(usage, room) - self.stranded(
            _with(usage, request, shares), None if room is None else room.minus(request.host)
        )
        return int(100 / (1 + exp(-min(max(gain, -500.0), 500.0))))

    def stranded(self, usage: NodeUsage, room: HostAmount | None) -> float:
        """Stranded GPUs. Below 0 if free GPUs are of a type in high demand."""
        node = usage.node
        gpus = [self._gpu(gpu, node) for gpu in usage.gpus]
        self.effort.made += 1 + len(gpus) * (8 + len(self._several)) // 8
        free = sum(gpu.left for gpu in gpus)
        hosted = self._hosted(room)
        useful = sum(gpu.left * self._share(gpu.serves & hosted & self._singles) for gpu in gpus)
        for each in self._several:
            if each.bit & hosted:
                useful += each.share * self._useful(each, gpus, node)
        return free - useful + self._without_host(free, room) - sum(gpu.left * gpu.worth for gpu in gpus)

    def _useful(self, several: _Several, gpus: Sequence[_Gpu], node: RegisteredNode) -> float:
        """The free parts of the GPUs that can serve a pod of the class together."""
        useful = 0.0
        for island in self._islands_for(several, node):
            left = [gpus[position].left for position in island if gpus[position].serves & several.bit]
            useful += sum(left) if len(left) >= several.count else 0.0
        return useful

    def _islands_for(self, several: _Several, node: RegisteredNode) -> Sequence[Sequence[int]]:
        """Positions of GPUs. All GPUs are one island if the class does not ask for links or fits in no island."""
        everywhere = (range(len(node.devices)),)
        if not several.linked:
            return everywhere
        known = self._islands.get(node.name)
        if known is None or known[0] is not node.pair_scores:
            _make_room(self._islands)
            self.effort.made += len(node.devices) ** 2 // 4
            known = self._islands[node.name] = node.pair_scores, tuple(islands(node))
        return known[1] if any(len(island) >= several.count for island in known[1]) else everywhere

    def _without_host(self, free: float, room: HostAmount | None) -> float:
        if room is None:
            return 0.0
        pairs = zip(room, self._workload.per_gpu, strict=True)
        return max(0.0, *(free - max(left, 0) / each for left, each in pairs if each), 0.0)

    def _hosted(self, room: HostAmount | None) -> int:
        """The classes for whose pods the node has enough CPU and memory."""
        if room is None:
            return -1
        hosted = self._hosts.get(room)
        if hosted is None:
            _make_room(self._hosts)
            hosted = self._hosts[room] = self._bits(
                lambda each: each.pods.host.cpu_milli <= room.cpu_milli and each.pods.host.memory_mib <= room.memory_mib
            )
        return hosted

    def _share(self, bits: int) -> float:
        share = self._shares.get(bits)
        if share is None:
            _make_room(self._shares)
            counted = enumerate(self._workload.classes)
            self.effort.made += len(self._workload.classes) // 8
            share = self._shares[bits] = sum(each.share for number, each in counted if bits >> number & 1)
        return share

    def _gpu(self, gpu: GpuUsage, node: RegisteredNode) -> _Gpu:
        """The worth of a GPU. It depends on its use, its kind and its node's settings."""
        device = gpu.device
        key = (
            *(device.type, device.memory_mib, device.cores, device.slots, device.mode, device.mig_profiles),
            *(device.is_mig, device.healthy and device.uuid not in node.cordoned, node.limits),
            *(gpu.slots, gpu.memory_mib, gpu.cores, gpu.placements),
        )
        found = self._gpus.get(key)
        if found is None:
            _make_room(self._gpus)
            found = self._gpus[key] = self._looked_at(gpu, node)
        return found

    def _looked_at(self, gpu: GpuUsage, node: RegisteredNode) -> _Gpu:
        device = gpu.device
        is_ours = VENDOR.lower() in device.type.lower()
        if not (is_ours and device.healthy) or device.uuid in node.cordoned or gpu.slots >= device.slots:
            return _Gpu(0.0, 0, 0.0)
        memory = 1 - gpu.memory_mib / device.memory_mib if device.memory_mib else 0.0
        cores = 1 - gpu.cores / device.cores if device.cores else memory
        serves = 0
        for number, (need, wanted, policy) in enumerate(self._wanted):
            rules = Rules(node=node, filter=wanted, policy=policy, numa_bound=False)
            if why_not(gpu, need, rules, None) is None:
                serves |= 1 << number
        self.effort.made += 1 + len(self._wanted) * (MIG_EFFORT if device.mode == MIG_MODE else 1)
        return _Gpu(max(min(memory, cores), 0.0), serves, self._workload.pressure.get(device.type, self._usual_worth))

    def _bits(self, holds: Callable[[Popular], bool]) -> int:
        self.effort.made += len(self._workload.classes) // 8
        return sum(1 << number for number, each in enumerate(self._workload.classes) if holds(each))


def islands(node: RegisteredNode) -> Iterator[Sequence[int]]:
    """Positions of GPUs that are connected, directly or through others, as well as the best pair of the node."""
    uuids = [device.uuid for device in node.devices]
    best = max((score for row in node.pair_scores.values() for score in row.values()), default=0)
    left = list(range(len(uuids)))
    while left:
        island, reached = [left[0]], [left.pop(0)]
        while reached:
            row = node.pair_scores.get(uuids[reached.pop()], {})
            near = [other for other in left if best and row.get(uuids[other]) == best]
            left = [other for other in left if other not in near]
            island += near
            reached += near
        yield island


def _with(usage: NodeUsage, request: GpuRequest, shares: PodShares) -> NodeUsage:
    """The node with the pod on it."""
    peak = effective(request.kinds, shares)
    gpus = []
    for gpu in usage.gpus:
        more = peak.get(gpu.device.uuid)
        if more is not None:
            own = [each.instance for container in shares for each in container if each.uuid == gpu.device.uuid]
            placements = (*gpu.placements, *(each.placement for each in own if each is not None))
            memory_mib, cores = gpu.memory_mib + more.memory_mib, gpu.cores + more.cores
            gpu = GpuUsage(gpu.device, gpu.slots + more.slots, memory_mib, cores, placements)  # noqa: PLW2901
        gpus.append(gpu)
    return replace(usage, gpus=tuple(gpus))


def _wanted(pods: PodClass) -> tuple[ContainerNeed, DeviceFilter, GpuPolicy]:
    wanted = DeviceFilter(types=pods.types, refused_types=pods.refused_types, modes=pods.modes)
    return pods.need, wanted, GpuPolicy(text="", keys=(), bound_keys=(), idle_only=pods.idle_only)


def _make_room(known: dict[Any, Any]) -> None:
    if len(known) >= MOST_REMEMBERED:
        known.clear()
