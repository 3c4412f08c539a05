"""Measures a cluster while pods come and go. Only nodes that have changed are measured again."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import fsum
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from proto.kubernetes.requests import host_requested
from scheduler_ext.cluster.registered import RegisteredNode
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage
from scheduler_ext.decide.fgd import Fragmentation
from scheduler_ext.requests import RequestError, RequestSettings, read_request
from scheduler_ext.workload import PodClass, Workload, class_of, workload_of
from simulation.plan.engine import Engine
from simulation.plan.links import nvlinks
from simulation.plan.objects import Arrival

Amount = Annotated[float, Meta(ge=0, le=2**53)]
"""A larger one in a report is forged: it would not fit on any axis."""


class Reading(Struct, frozen=True, kw_only=True):
    """All amounts are in GPUs. An island is a group of GPUs of one node that its best NVLinks connect."""

    gpus: int
    allocated: Amount
    """The part of each GPU that is taken, of memory or of cores, whichever is more."""
    fragmented: Amount
    """Free parts that pods of this plan cannot use where they are: FGD's measure (Weng et al., USENIX ATC '23)."""
    whole: int
    """GPUs that no pod uses."""
    islands: int
    whole_islands: int


class _GaugedNode(NamedTuple):
    allocated: float = 0.0
    fragmented: float = 0.0
    whole: int = 0
    whole_islands: int = 0


class Gauge:
    def __init__(self, engine: Engine, workload: Workload) -> None:
        self._engine = engine
        # Only the first of the extender's three terms is the published measure.
        self._stranding = Fragmentation(Workload(classes=workload.classes)) if workload.classes else None
        self._nodes: dict[str, _GaugedNode] = {}
        self._islands: dict[str, tuple[RegisteredNode, Sequence[Sequence[int]]]] = {}

    def read(self) -> Reading:
        ledger = self._engine.state.ledger
        for name in self._engine.changed:
            usage = ledger.nodes.usages().get(name)
            if usage is None:
                self._nodes.pop(name, None)
                continue
            self._nodes[name] = self._measured(name, usage)
        self._engine.changed.clear()
        known = self._nodes.values()
        # `fsum` is the same in every order. The order of a set differs from process to process.
        return Reading(
            gpus=sum(len(self._islands[name][0].devices) for name in self._nodes),
            allocated=fsum(node.allocated for node in known),
            fragmented=fsum(node.fragmented for node in known),
            whole=sum(node.whole for node in known),
            islands=sum(len(self._islands[name][1]) for name in self._nodes),
            whole_islands=sum(node.whole_islands for node in known),
        )

    def _measured(self, name: str, usage: NodeUsage) -> _GaugedNode:
        found = self._islands.get(name)
        if found is None or found[0] is not usage.node:
            found = self._islands[name] = usage.node, tuple(nvlink_islands(usage.node))
        free = [_is_free(gpu, usage.node) for gpu in usage.gpus]
        room, stranding = self._engine.state.ledger.hosts.left(name), self._stranding
        return _GaugedNode(
            allocated=sum(map(taken, usage.gpus)),
            fragmented=0.0 if stranding is None else stranding.stranded(usage, room),
            whole=sum(free),
            whole_islands=sum(all(free[position] for position in island) for island in found[1]),
        )


def taken(gpu: GpuUsage) -> float:
    """Returns the part of a GPU that is taken, from 0 to 1."""
    device = gpu.device
    memory = gpu.memory_mib / device.memory_mib if device.memory_mib else 0.0
    cores = gpu.cores / device.cores if device.cores else 0.0
    return min(max(memory, cores), 1.0)


def _is_free(gpu: GpuUsage, node: RegisteredNode) -> bool:
    return not gpu.replicas and gpu.device.healthy and gpu.device.uuid not in node.cordoned


def nvlink_islands(node: RegisteredNode) -> Iterable[Sequence[int]]:
    """Returns positions of GPUs, two or more in each, that as many NVLinks connect as the best pair of the node."""
    uuids, scores = [device.uuid for device in node.devices], node.pair_scores
    best = max((nvlinks(score) for row in scores.values() for score in row.values()), default=0)
    left = list(range(len(uuids))) if best else []
    while left:
        island, reached = [left[0]], [left.pop(0)]
        while reached:
            row = scores.get(uuids[reached.pop()], {})
            near = [other for other in left if nvlinks(row.get(uuids[other], 0)) == best]
            left = [other for other in left if other not in near]
            island += near
            reached += near
        if len(island) > 1:
            yield island


def workload_for(arrivals: Iterable[Arrival], nodes: Iterable[RegisteredNode], settings: RequestSettings) -> Workload:
    """Returns the kinds of pods in the plan, as the extender would learn them."""
    weights: dict[PodClass, float] = {}
    known: dict[bytes, PodClass | None] = {}
    for arrival in arrivals:
        if arrival.kind not in known:
            known[arrival.kind] = _class_of(arrival, settings)
        pods = known[arrival.kind]
        if pods is not None:
            weights[pods] = weights.get(pods, 0.0) + 1.0
    return workload_of(weights, nodes)


def _class_of(arrival: Arrival, settings: RequestSettings) -> PodClass | None:
    pod = arrival.pod(arrival.name)
    try:
        request = read_request(pod, settings)
    except RequestError:
        return None
    if request is None:
        return None
    return class_of(replace(request, host=host_requested(pod)))
