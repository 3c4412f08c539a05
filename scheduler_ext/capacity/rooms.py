"""The number of further pods of one shape that fit, their nodes, and what a group lacks of its number."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace

from msgspec.structs import replace as with_fields

from program.words import counted, spaced
from proto.devices import DeviceUUID
from scheduler_ext.cluster.accounting import NOTHING, Footprint, effective
from scheduler_ext.cluster.gangs import Gang
from scheduler_ext.cluster.registered import UNREGISTERED
from scheduler_ext.cluster.snapshot import NodeUsage, Quota, Snapshot, quota_for
from scheduler_ext.decide.effort import Effort
from scheduler_ext.decide.misfit import Misfit
from scheduler_ext.decide.place import place, pods_on, with_pod
from scheduler_ext.decide.reasons import words_of
from scheduler_ext.domains.levels import DomainWish, word
from scheduler_ext.domains.plan import Room, no_domain
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
            return NodeRoom(
                node=name, pods=pods, gpus=tuple(sorted(gpus)), part=part, reason="; ".join(shares.words(named=True))
            )
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
        (with_fields(gpu, device=replace(gpu.device, uuid=DeviceUUID(""))), gpu.device.uuid in node.cordoned)
        for gpu in usage.gpus
    )
    return gpus, scores, node.limits


def lack_of(gang: Gang, request: GpuRequest, snapshot: Snapshot, *, alone_fits: bool) -> str:
    """Returns what the group lacks if its missing pods are like this one, to follow `waits: `; empty if all of them
    fit, or if not even one does alone and the group needs no domain. The largest domain counts where they have to be
    in one.
    """
    wish = request.wish
    if wish is not None and wish.required and (lack := _domain_lacking(gang, request, wish, snapshot)):
        return lack
    if gang.needed < 2 or not alone_fits:
        return ""
    level = constraint_of(gang)
    domains: dict[str, list[NodeUsage]] = {}
    for usage in snapshot.nodes.values():
        name = usage.node.domains.get(level, "") if level else ""
        if name or not level:
            domains.setdefault(name, []).append(usage)
    quota = quota_for(request.quota_class, snapshot.quotas.get(request.namespace, ()))
    rooms = {name: _fitting(request, usages, quota, gang.needed) for name, usages in domains.items()}
    best = max(sorted(rooms), key=rooms.__getitem__, default="")
    fit = rooms.get(best, 0)
    return "" if fit >= gang.needed else shortage(gang, request, fit, level, best)


def _domain_lacking(gang: Gang, request: GpuRequest, wish: DomainWish, snapshot: Snapshot) -> str:
    rooms = [
        Room(name, pods_on(usage, request, Effort()), usage.node.domains) for name, usage in snapshot.nodes.items()
    ]
    known = {**snapshot.closed, **snapshot.nodes}
    beside = [known[name].node.domains if name in known else {} for name in gang.nodes]
    refusal = no_domain(rooms, gang.needed, wish, beside)
    return f"group {gang.group} {refusal}" if refusal.largest < gang.needed else ""


def constraint_of(gang: Gang) -> str:
    """Returns the label whose value kube-scheduler wants all nodes of the group to share; empty if none."""
    constraints = gang.object.spec.scheduling_constraints if gang.object is not None else None
    return constraints.topology[0].key if constraints is not None and constraints.topology else ""


def shortage(gang: Gang, request: GpuRequest, fit: int, level: str = "", domain: str = "") -> str:
    """Returns `group default/g needs 4 pods of 8 GPUs; 3 fit`, and ` in clique a` with a domain."""
    gpus = sum(need.count for need in request.needs if need is not None)
    where = f" in {word(level)} {domain}" if domain else ""
    return f"group {gang.group} needs {gang.needed} pods of {counted(gpus, 'GPU')}; {fit} fit{where}"


def _fitting(request: GpuRequest, usages: Iterable[NodeUsage], quota: Quota | None, most: int) -> int:
    number = 0
    for usage in usages:
        while number < most:
            shares = place(request, usage, quota)
            if isinstance(shares, Misfit):
                break
            number += 1
            usage = with_pod(usage, request, shares)  # noqa: PLW2901 - the same node with one more pod
            for each in shares:
                quota = None if quota is None else quota.charged(each)
    return number
