"""The NUMA nodes on which kubelet's Topology Manager would put a pod, and whether it would refuse the pod.

It judges one part of the pod after another: each container, or with scope `pod` the whole pod. CPU manager and device
manager each name the sets of NUMA nodes that have enough for the part; of these the smallest that would do on an empty
machine are preferred. Kubelet takes the lowest set that both prefer. It counts replicas of GPUs, not GPUs, and knows no
decision: so the GPUs of a container with CPUs of its own are decided among those of that set.
Source: pkg/kubelet/cm/topologymanager, cpumanager and devicemanager of Kubernetes 1.29 to 1.37.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

from proto.annotations.node_numa import NodeNuma, TopologyPolicy, TopologyScope
from proto.devices import PodShares
from scheduler_ext.cluster.accounting import pinned_containers, taken_cpus
from scheduler_ext.cluster.snapshot import NodeUsage
from scheduler_ext.requests import ContainerKind, GpuRequest

Zones = frozenset[int] | None
"""The NUMA nodes of which a container's GPUs must be; None for any."""


class KubeletRefusal(NamedTuple):
    """Kubelet would refuse the pod for the container at this position; or, for a moment, it is unknown what it does."""

    position: int
    is_changing: bool = False


@dataclass(slots=True)
class _Amounts:
    """CPUs or replicas by NUMA node: what an empty machine has, and what is free.

    `reused` are free, and init containers of the pod had them: kubelet gives a container only sets with all of their
    NUMA nodes. It takes reused replicas first, and CPUs in any order: so a reused CPU counts as long as it may be left.
    """

    total: Mapping[int, int]
    free: dict[int, int]
    reused_first: bool
    reused: dict[int, int] = field(default_factory=dict)

    def preferred(self, amount: int, zones: Sequence[int]) -> Iterator[frozenset[int]]:
        """Yields the preferred sets with so many free, the lowest first."""
        least = next((len(each) for each in _sets(tuple(zones)) if _sum(self.total, each) >= amount), len(zones))
        for each in _sets(tuple(zones)):
            if len(each) == least and each.issuperset(self.reused) and _sum(self.free, each) >= amount:
                yield each

    def take(self, amount: int, zones: frozenset[int], *, lasts: bool) -> None:
        for zone in sorted(zones):
            free, reused = max(self.free.get(zone, 0), 0), self.reused.pop(zone, 0)
            taken = min(amount, free)
            if lasts:
                self.free[zone] = free - taken
                left = reused - (taken if self.reused_first else max(taken - (free - reused), 0))
            else:
                left = max(reused, taken)
            if left > 0:
                self.reused[zone] = left
            amount -= taken


class _Part(NamedTuple):
    """A part that kubelet aligns at once: a container, or the whole pod. `position` is then its first one with GPUs."""

    position: int
    cpus: int
    gpus: int
    lasts: bool


def zones_of(request: GpuRequest, usage: NodeUsage) -> Sequence[Zones] | KubeletRefusal | None:
    """Returns the NUMA nodes for each container's GPUs; None where kubelet does not look at them."""
    numa = usage.node.numa
    if numa is None or not numa.zones or not aligns(request, usage):
        return None
    if numa.changing and request.cpus:
        return KubeletRefusal(0, is_changing=True)
    cpus = _Amounts({zone: each.cpus for zone, each in numa.zones.items()}, dict(usage.free_cpus), reused_first=False)
    replicas = _replicas(usage, numa)
    devices = [gpu.device.numa for gpu in usage.gpus]
    found: list[Zones] = [None] * len(request.needs)
    for part in _parts(request, numa.scope):
        chosen = _chosen(part, cpus, replicas, numa)
        if chosen is None:
            # It is not foreseen which of several bad places kubelet takes.
            return KubeletRefusal(part.position) if numa.policy.refuses else found
        positions = [part.position] if numa.scope is TopologyScope.CONTAINER else range(len(request.needs))
        for position in positions:
            need = request.needs[position]
            if need is None or not part.cpus or not replicas.total:
                continue
            if sum(zone in chosen for zone in devices) >= need.count:
                found[position] = chosen
            elif numa.policy is TopologyPolicy.SINGLE_NUMA_NODE:
                return KubeletRefusal(position)
        cpus.take(part.cpus, chosen, lasts=part.lasts)
        replicas.take(part.gpus, chosen, lasts=part.lasts)
    return found


def free_cpus_with(usage: NodeUsage, request: GpuRequest, shares: PodShares) -> Mapping[int, int]:
    """Returns the free CPUs once the pod has these GPUs. A container without GPUs may have its own CPUs anywhere."""
    if not usage.free_cpus or not request.cpus or usage.node.numa is None:
        return usage.free_cpus
    is_whole = usage.node.numa.scope is TopologyScope.POD
    numa = {gpu.device.uuid: gpu.device.numa for gpu in usage.gpus}
    pinned = pinned_containers(request.cpus, request.kinds, shares)
    anywhere = 0 if is_whole else sum(each.cpus for each in pinned if not each.gpus)
    taken = taken_cpus(pinned, numa, usage.free_cpus, is_whole=is_whole)
    return {zone: max(free - anywhere - taken[zone], 0) for zone, free in usage.free_cpus.items()}


def aligns(request: GpuRequest, usage: NodeUsage) -> bool:
    """Returns whether kubelet's policy on this node can matter to the pod. To one that has a single GPU and no CPUs of
    its own it does where that GPU may have no NUMA node and the others may be held.
    """
    several = bool(request.cpus) or sum(need.count for need in request.needs if need is not None) > 1
    return several or any(gpu.device.numa not in usage.free_cpus for gpu in usage.gpus)


def _chosen(part: _Part, cpus: _Amounts, replicas: _Amounts, numa: NodeNuma) -> frozenset[int] | None:
    """Returns the set that kubelet takes; None if it refuses the pod."""
    zones = sorted(numa.zones)
    sets: list[frozenset[int]] | None = list(cpus.preferred(part.cpus, zones)) if part.cpus else None
    # Kubelet has no preference for devices none of which names a NUMA node.
    if part.gpus and replicas.total:
        fitting = replicas.preferred(part.gpus, sorted(replicas.total))
        sets = [each for each in fitting if sets is None or each in sets]
    if sets is not None and numa.policy is TopologyPolicy.SINGLE_NUMA_NODE:
        sets = [each for each in sets if len(each) == 1]
    return frozenset(zones) if sets is None else next(iter(sets), None)


def _replicas(usage: NodeUsage, numa: NodeNuma) -> _Amounts:
    """Returns the replicas that name a NUMA node: free ones do where it is open, held ones always."""
    total: dict[int, int] = {}
    free: dict[int, int] = {}
    for gpu in usage.gpus:
        zone = numa.zones.get(gpu.device.numa)
        if zone is not None:
            is_open, at = not zone.closed, gpu.device.numa
            total[at] = total.get(at, 0) + (gpu.device.replicas if is_open else gpu.replicas)
            left = gpu.device.replicas - gpu.replicas if is_open and gpu.device.healthy else 0
            free[at] = free.get(at, 0) + max(left, 0)
    return _Amounts(total, free, reused_first=True)


def _parts(request: GpuRequest, scope: TopologyScope) -> Iterator[_Part]:
    gpus = [0 if need is None else need.count for need in request.needs]
    cpus = request.cpus or (0,) * len(gpus)
    if scope is TopologyScope.CONTAINER:
        for position, kind in enumerate(request.kinds):
            if cpus[position] or gpus[position]:
                yield _Part(position, cpus[position], gpus[position], kind is not ContainerKind.INIT)
    else:
        first = next(position for position, count in enumerate(gpus) if count)
        yield _Part(first, _at_once(request.kinds, cpus), _at_once(request.kinds, gpus), lasts=False)


def _at_once(kinds: Sequence[ContainerKind], amounts: Sequence[int]) -> int:
    """Returns the most that the containers have at one time: init containers run before others, sidecars beside."""
    running = most = 0
    for kind, amount in zip(kinds, amounts, strict=True):
        most = max(most, running + amount)
        if kind is not ContainerKind.INIT:
            running += amount
    return most


@lru_cache(maxsize=64)
def _sets(zones: tuple[int, ...]) -> tuple[frozenset[int], ...]:
    """Returns all sets in kubelet's order: smaller ones first, of equal ones that with the lower bits."""
    found = (frozenset(each) for size in range(1, len(zones) + 1) for each in combinations(zones, size))
    return tuple(sorted(found, key=lambda each: (len(each), sum(1 << zone for zone in each))))


def _sum(amounts: Mapping[int, int], zones: frozenset[int]) -> int:
    return sum(max(amounts.get(zone, 0), 0) for zone in zones)
