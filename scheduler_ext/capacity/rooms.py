"""The number of further pods of one shape that fit, and their nodes."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace

from program.words import spaced
from proto.devices import DeviceUUID
from scheduler_ext.cluster.accounting import NOTHING, Footprint, effective
from scheduler_ext.cluster.registered import UNREGISTERED
from scheduler_ext.cluster.snapshot import NodeUsage, Snapshot, quota_for
from scheduler_ext.decide.misfit import Misfit
from scheduler_ext.decide.place import place, with_pod
from scheduler_ext.decide.reasons import words_of
from scheduler_ext.requests import GpuRequest

MOST_PODS = 1_000
"""Pods of a node that are counted: each takes a decision, and kubelets run a few hundred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRoom:
    """Room for more pods on one node, counted up to `MOST_PODS`. The first of them gets the GPUs with these indices."""

    node: str
    pods: int
    gpus: tuple[int, ...] = ()
    part: Footprint = NOTHING
    reason: str
    """The reason why one more pod does not fit, in words."""


def rooms(request: GpuRequest, snapshot: Snapshot) -> tuple[NodeRoom, ...]:
    """Returns the room of every node by name, without the namespace's quotas: they limit the sum, see `quota_pods`."""
    names_gpus = request.filter.uuids is not None or bool(request.filter.refused_uuids)
    known: dict[Hashable, NodeRoom] = {}
    found = []
    for name, usage in sorted(snapshot.nodes.items()):
        key = name if names_gpus else likeness(usage)
        if key not in known:
            known[key] = _room(name, request, usage)
        found.append(replace(known[key], node=name))
    closed = {name: reason for name, reason in snapshot.unregistered.items() if reason != UNREGISTERED}
    found += [NodeRoom(node=name, pods=0, reason="; ".join(words_of(reason))) for name, reason in closed.items()]
    return tuple(sorted(found, key=lambda room: room.node))


def quota_pods(request: GpuRequest, snapshot: Snapshot, found: Iterable[NodeRoom]) -> int | None:
    """Returns how many of the pods the namespace's quotas still admit, each as large as the first; None: any number."""
    quota = quota_for(request.quota_class, snapshot.quotas.get(request.namespace, ()))
    part = next((room.part for room in found if room.pods), None)
    if quota is None or part is None:
        return None
    amounts = (
        (quota.gpus, quota.used.replicas, part.replicas),
        (quota.memory_mib, quota.used.memory_mib, part.memory_mib),
        (quota.cores, quota.used.cores, part.cores),
    )
    left = [max((limit - used) // each, 0) for limit, used, each in amounts if limit is not None and each]
    return min(left, default=None)


def _room(name: str, request: GpuRequest, usage: NodeUsage) -> NodeRoom:
    pods, gpus, part = 0, frozenset[int](), NOTHING
    while pods < MOST_PODS:
        shares = place(request, usage, None)
        if isinstance(shares, Misfit):
            return NodeRoom(node=name, pods=pods, gpus=tuple(sorted(gpus)), part=part, reason="; ".join(shares.words()))
        if not pods:
            parts = effective(request.kinds, shares)
            gpus = frozenset(gpu.device.index for gpu in usage.gpus if gpu.device.uuid in parts)
            part = sum(parts.values(), NOTHING)
        pods += 1
        usage = with_pod(usage, request, shares)
    reason = f"more than {spaced(MOST_PODS)} pods of a node are not counted"
    return NodeRoom(node=name, pods=pods, gpus=tuple(sorted(gpus)), part=part, reason=reason)


def likeness(usage: NodeUsage) -> Hashable:
    """Returns a key: nodes with equal keys are alike but for their names and UUIDs. Most clusters have few kinds."""
    node = usage.node
    uuids = [gpu.device.uuid for gpu in usage.gpus]
    rows = map(node.pair_scores.get, uuids)
    scores = tuple(tuple(map(row.get, uuids)) if row else () for row in rows)
    gpus = tuple(
        (replace(gpu, device=replace(gpu.device, uuid=DeviceUUID(""))), gpu.device.uuid in node.cordoned)
        for gpu in usage.gpus
    )
    return gpus, scores, node.limits
