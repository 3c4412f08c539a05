"""Measures, in GPUs, what a node strands for the pods that usually come. Less is better.

The measure is the sum of three parts:

1. GPU capacity that no popular class could use, weighted by popularity. This is fragmentation as FGD defines it (Weng
et al., Beware of Fragmentation, USENIX ATC '23).

2. GPUs that will be left over because the node has too little CPU or memory for them, by what popular pods request
beside a GPU.

3. A higher weight for free GPUs of a type in higher demand than others: some pods can use no other type.

A pod goes where the sum grows least.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import exp, inf
from typing import NamedTuple

from proto.devices import MIG_MODE, VENDOR, Device, PairScores, PodShares
from proto.kubernetes.requests import HostAmount
from scheduler_ext.cluster.accounting import effective
from scheduler_ext.cluster.registered import RegisteredNode
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage
from scheduler_ext.decide.effort import Effort, make_room
from scheduler_ext.decide.fit import MIG_EFFORT, Rules, why_not
from scheduler_ext.policies import GpuPolicy
from scheduler_ext.requests import ContainerNeed, DeviceFilter, GpuRequest
from scheduler_ext.workload import PodClass, Workload

HIGHEST_LEVEL = 100
"""The level of the best placement."""
NOTHING_LOST = 50
"""The level of a placement that strands nothing and frees nothing."""
MOST_REMEMBERED = 20_000
"""Entries remembered in each cache."""
MOST_HOSTED = 8
"""Sets of classes for which a node's state is remembered."""


class RatedGpu(NamedTuple):
    """One GPU and what is free of it. Another of the same kind in the same use has the same number."""

    number: int
    device: Device
    replicas: int
    memory_mib: int
    cores: int
    left: float
    """The free fraction of memory or of cores, whichever is less."""
    serves: int
    """The classes whose containers fit on it, a bit for each."""
    worth: float
    """The weight of what is free."""


class _ClassWishes(NamedTuple):
    """The requests of a class of pods, and the GPUs that serve them."""

    need: ContainerNeed
    filter: DeviceFilter
    policy: GpuPolicy


class _Islands(NamedTuple):
    """The islands of a node's GPUs, by its scores."""

    scores: PairScores
    positions: Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class _MultiGpuClass:
    """A class whose pods take several GPUs each."""

    bit: int
    count: int
    share: float
    linked: bool


class RatedKind(NamedTuple):
    """A kind of GPU, the gain with a whole one taken if no more becomes useless, and the number of equal GPUs."""

    gpu: RatedGpu
    rate: float
    number: int


class Rates(NamedTuple):
    """The gain from taking GPUs of a node whose CPU and memory suffice for certain classes."""

    useful: float
    """The free GPUs that the popular pods can use, weighted by popularity."""
    kinds: Sequence[RatedKind]


@dataclass(slots=True)
class _RatedNode:
    """The GPUs of a node in one state, and what was computed of them, by the classes that its CPU and memory host."""

    gpus: Sequence[RatedGpu]
    free: float
    worth: float
    useful: dict[int, Sequence[float]] = field(default_factory=dict)
    """The popularity of all classes that can use a GPU, for each GPU."""
    rates: dict[int, Rates] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Site:
    """A node as it is now. `cpu` is in milli-cores, `memory` in MiB; both are infinite if unknown. `rates` are for the
    classes that it hosts, `lost` are free GPUs without CPU or memory.
    """

    usage: NodeUsage
    node: _RatedNode
    cpu: float
    memory: float
    hosted: int
    rates: Rates
    lost: float


class Fragmentation:
    """Measures placements for one workload, and remembers what it computed. `effort` counts the work."""

    def __init__(self, workload: Workload) -> None:
        self.effort = Effort()
        self.workload = workload
        # The worth of a type that came since the pods were last weighed.
        self._usual_worth = 1.0 if workload.pressure else 0.0
        self._wishes = tuple(_wishes(each.pods) for each in workload.classes)
        self._several = tuple(
            _MultiGpuClass(1 << number, each.pods.need.count, each.share, each.pods.linked)
            for number, each in enumerate(workload.classes)
            if each.pods.need.count > 1
        )
        self._singles = ~sum(each.bit for each in self._several)
        self._hosted_by_cpu = _Hosted([each.pods.host.cpu_milli for each in workload.classes])
        self._hosted_by_memory = _Hosted([each.pods.host.memory_mib for each in workload.classes])
        self._gpus: dict[object, RatedGpu] = {}
        self._numbered = 0
        self._nodes: dict[int, _RatedNode] = {}
        """The rated nodes by the number of their state."""
        self._shares: dict[int, float] = {}
        """The summed popularity of the classes with these bits."""
        self._islands: dict[str, _Islands] = {}

    def site(self, usage: NodeUsage, room: HostAmount | None, state: int | None = None) -> Site:
        """Returns the facts of a node that count here. `room` is what is left of its CPU and memory, None if unknown;
        `state` is the number of its state, None for a node without one.
        """
        cpu, memory = room if room is not None else (inf, inf)
        node = self._node(usage, state)
        hosted = self.hosted(cpu, memory)
        rates = self._rates(node, usage.node, hosted)
        return Site(usage, node, cpu, memory, hosted, rates, self.without_host(node.free, cpu, memory))

    def level(self, request: GpuRequest, site: Site, shares: PodShares) -> int:
        """Returns the quality of this placement, from 0 to `HIGHEST_LEVEL`.

        The steps are those of FGD: without them a hundredth of a GPU would outweigh a fuller node.
        """
        after = self._with(site.node, site.usage, request, shares)
        cpu, memory = site.cpu - request.host.cpu_milli, site.memory - request.host.memory_mib
        return level_of(_stranded(site) - self._left_stranded(after, site.usage.node, cpu, memory))

    def without_gpus(self, host: HostAmount, site: Site) -> int:
        """Returns the level of a pod that takes CPU and memory but no GPU: `NOTHING_LOST` at most."""
        if not site.node.free:
            return NOTHING_LOST
        cpu, memory = site.cpu - host.cpu_milli, site.memory - host.memory_mib
        lost = self.without_host(site.node.free, cpu, memory) - site.lost
        return level_of(self.rates(site, self.hosted(cpu, memory)).useful - site.rates.useful - lost)

    def stranded(self, usage: NodeUsage, room: HostAmount | None) -> float:
        """Returns the number of stranded GPUs. It is below 0 if free GPUs are of a type in high demand."""
        return _stranded(self.site(usage, room))

    def hosted(self, cpu_milli: float, memory_mib: float) -> int:
        """Returns the classes for whose pods so much CPU and memory is enough, a bit for each."""
        return self._hosted_by_cpu.within(cpu_milli) & self._hosted_by_memory.within(memory_mib)

    def rates(self, site: Site, hosted: int) -> Rates:
        """Returns the rates as if CPU and memory of the node were enough for these classes only."""
        return site.rates if hosted == site.hosted else self._rates(site.node, site.usage.node, hosted)

    def without_host(self, free: float, cpu_milli: float, memory_mib: float) -> float:
        """Returns for how many of these free GPUs so much CPU or memory is not enough."""
        per_gpu, lost = self.workload.per_gpu, 0.0
        if per_gpu.cpu_milli:
            lost = free - cpu_milli / per_gpu.cpu_milli if cpu_milli > 0 else free
        if per_gpu.memory_mib:
            by_memory = free - memory_mib / per_gpu.memory_mib if memory_mib > 0 else free
            lost = max(lost, by_memory)
        return max(lost, 0.0)

    def _left_stranded(
        self, node: _RatedNode, registered: RegisteredNode, cpu_milli: float, memory_mib: float
    ) -> float:
        shares = self._useful(node, registered, self.hosted(cpu_milli, memory_mib))
        useful = sum(gpu.left * share for gpu, share in zip(node.gpus, shares, strict=True))
        return node.free - useful + self.without_host(node.free, cpu_milli, memory_mib) - node.worth

    def _rates(self, node: _RatedNode, registered: RegisteredNode, hosted: int) -> Rates:
        found = node.rates.get(hosted)
        if found is None:
            useful = self._useful(node, registered, hosted)
            total = sum(gpu.left * share for gpu, share in zip(node.gpus, useful, strict=True))
            kinds: dict[tuple[int, float], RatedKind] = {}
            for gpu, share in zip(node.gpus, useful, strict=True):
                known = kinds.get((gpu.number, share))
                number = 1 if known is None else known.number + 1
                kinds[gpu.number, share] = RatedKind(gpu, 1 - share - gpu.worth, number)
            make_room(node.rates, MOST_HOSTED)
            found = node.rates[hosted] = Rates(total, tuple(kinds.values()))
        return found

    def _node(self, usage: NodeUsage, state: int | None) -> _RatedNode:
        found = None if state is None else self._nodes.get(state)
        if found is None:
            self.effort.made += 1 + len(usage.gpus)
            found = _made([self._gpu(gpu, usage.node) for gpu in usage.gpus])
            if state is not None:
                make_room(self._nodes, MOST_REMEMBERED)
                self._nodes[state] = found
        return found

    def _with(self, before: _RatedNode, usage: NodeUsage, request: GpuRequest, shares: PodShares) -> _RatedNode:
        """Returns the node with the pod on it."""
        peak = effective(request.kinds, shares)
        gpus = list(before.gpus)
        for position, gpu in enumerate(usage.gpus):
            more = peak.get(gpu.device.uuid)
            if more is None:
                continue
            own = (each.instance for container in shares for each in container if each.uuid == gpu.device.uuid)
            placements = (*gpu.placements, *(each.placement for each in own if each is not None))
            memory_mib, cores = gpu.memory_mib + more.memory_mib, gpu.cores + more.cores
            taken = GpuUsage(gpu.device, gpu.replicas + more.replicas, memory_mib, cores, placements)
            gpus[position] = self._gpu(taken, usage.node)
        return _made(gpus)

    def _useful(self, node: _RatedNode, registered: RegisteredNode, hosted: int) -> Sequence[float]:
        known = node.useful.get(hosted)
        if known is not None:
            return known
        gpus = node.gpus
        self.effort.made += 1 + len(gpus) * (4 + len(self._several)) // 8
        singles = hosted & self._singles
        useful = [self._share(gpu.serves & singles) for gpu in gpus]
        for each in self._several:
            if each.bit & hosted:
                for island in self._islands_for(each, registered):
                    serving = [position for position in island if gpus[position].serves & each.bit]
                    if len(serving) >= each.count:
                        for position in serving:
                            useful[position] += each.share
        make_room(node.useful, MOST_HOSTED)
        node.useful[hosted] = useful
        return useful

    def _islands_for(self, several: _MultiGpuClass, node: RegisteredNode) -> Sequence[Sequence[int]]:
        """Returns islands of GPUs by their positions. All GPUs are one island if the class needs no links or fits in no
        island.
        """
        everywhere = (range(len(node.devices)),)
        if not several.linked:
            return everywhere
        known = self._islands.get(node.name)
        if known is None or known.scores is not node.pair_scores:
            make_room(self._islands, MOST_REMEMBERED)
            self.effort.made += len(node.devices) ** 2 // 4
            known = self._islands[node.name] = _Islands(node.pair_scores, tuple(islands(node)))
        return known.positions if any(len(each) >= several.count for each in known.positions) else everywhere

    def _share(self, bits: int) -> float:
        share = self._shares.get(bits)
        if share is None:
            make_room(self._shares, MOST_REMEMBERED)
            counted = enumerate(self.workload.classes)
            self.effort.made += len(self.workload.classes) // 8
            share = self._shares[bits] = sum(each.share for number, each in counted if bits >> number & 1)
        return share

    def _gpu(self, gpu: GpuUsage, node: RegisteredNode) -> RatedGpu:
        """Returns the facts of a GPU that count here. They depend on its use, its kind and its node's settings."""
        device = gpu.device
        key = (
            *(device.type, device.memory_mib, device.cores, device.replicas, device.mode, device.mig_profiles),
            *(device.is_mig, device.healthy and device.uuid not in node.cordoned, node.limits),
            *(gpu.replicas, gpu.memory_mib, gpu.cores, gpu.placements),
        )
        found = self._gpus.get(key)
        if found is None:
            make_room(self._gpus, MOST_REMEMBERED)
            found = self._gpus[key] = self._looked_at(gpu, node)
        return found

    def _looked_at(self, gpu: GpuUsage, node: RegisteredNode) -> RatedGpu:
        device = gpu.device
        is_ours = VENDOR.lower() in device.type.lower()
        self._numbered += 1
        free = device.memory_mib - gpu.memory_mib, device.cores - gpu.cores
        if not (is_ours and device.healthy) or device.uuid in node.cordoned or gpu.replicas >= device.replicas:
            return RatedGpu(self._numbered, device, 0, *free, 0.0, 0, 0.0)
        memory = 1 - gpu.memory_mib / device.memory_mib if device.memory_mib else 0.0
        cores = 1 - gpu.cores / device.cores if device.cores else memory
        serves = 0
        for number, each in enumerate(self._wishes):
            rules = Rules(node=node, filter=each.filter, policy=each.policy, numa_bound=False)
            if why_not(gpu, each.need, rules, None) is None:
                serves |= 1 << number
        self.effort.made += 1 + len(self._wishes) * (MIG_EFFORT if device.mode == MIG_MODE else 1)
        worth = self.workload.pressure.get(device.type, self._usual_worth)
        replicas, left = device.replicas - gpu.replicas, max(min(memory, cores), 0.0)
        return RatedGpu(self._numbered, device, replicas, *free, left, serves, worth)


class _Hosted:
    """Finds the classes that need no more than a certain amount."""

    def __init__(self, needed: Sequence[int]) -> None:
        """Sorts the classes by the amount that each needs."""
        order = sorted(range(len(needed)), key=needed.__getitem__)
        self._limits = [needed[number] for number in order]
        self._bits = [0]
        for number in order:
            self._bits.append(self._bits[-1] | 1 << number)

    def within(self, amount: float) -> int:
        """Returns a bit for each class that needs no more than this amount."""
        return self._bits[bisect_right(self._limits, amount)]


def level_of(gain: float) -> int:
    """Returns the level of a placement after which this many GPUs fewer are stranded."""
    return int(100 / (1 + exp(-gain))) if gain > -500.0 else 0


def _stranded(site: Site) -> float:
    return site.node.free - site.rates.useful + site.lost - site.node.worth


def _made(gpus: Sequence[RatedGpu]) -> _RatedNode:
    return _RatedNode(gpus, sum(gpu.left for gpu in gpus), sum(gpu.left * gpu.worth for gpu in gpus))


def islands(node: RegisteredNode) -> Iterator[Sequence[int]]:
    """Yields the positions of GPUs that are connected, directly or through others, as well as the best pair of the
    node.
    """
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


def _wishes(pods: PodClass) -> _ClassWishes:
    wanted = DeviceFilter(types=pods.types, refused_types=pods.refused_types, modes=pods.modes)
    return _ClassWishes(pods.need, wanted, GpuPolicy(text="", keys=(), bound_keys=(), idle_only=pods.idle_only))
