"""What the API server shows changes the cluster's state, and wakes what waits for it outside."""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

from proto.kubernetes.objects import (
    CoschedulingPodGroup,
    Node,
    ObjectReference,
    Pod,
    PodDisruptionBudget,
    PodGroup,
    ResourceQuota,
    VolcanoPodGroup,
    version_number,
)
from scheduler_ext.cluster import events
from scheduler_ext.cluster.accounting import total
from scheduler_ext.cluster.bound import OUTLIVING_SECONDS, outlives
from scheduler_ext.cluster.events import Changed, ClusterEvent, Effect, Freed, Nominated, RecordEvent, Wished
from scheduler_ext.cluster.history import LogKind
from scheduler_ext.cluster.parts import ClusterParts
from scheduler_ext.cluster.pod_index import pod_name
from scheduler_ext.cluster.records import PodRecord
from scheduler_ext.requests import pod_key

Handler = Callable[[ClusterParts, Any, float], Sequence[Effect] | None]

_FREED, _WISHED = Freed(), Wished()
_EVERYTHING_CHANGED = Changed()
_NOTHING: Sequence[Effect] = ()


def _nodes_listed(parts: ClusterParts, event: events.Listed[Node], _: float) -> Sequence[Effect]:
    nodes = event.objects
    parts.ledger.replace_nodes(nodes)
    parts.pods.replace_nodes(nodes)
    parts.unreadable_nodes.keep_only({node.metadata.name for node in nodes})
    return [_EVERYTHING_CHANGED, *(tell for node in nodes for tell in _unreadable_node(parts, node))]


def _node_applied(parts: ClusterParts, node: Node, _: float) -> Sequence[Effect]:
    name, nodes = node.metadata.name, parts.ledger.nodes
    domains = nodes.domains(name)
    parts.ledger.apply_node(node)
    offers_others = parts.pods.apply_node(node)
    freed = (_FREED,) if offers_others or nodes.domains(name) != domains else ()
    return [Changed(name), *freed, *_unreadable_node(parts, node)]


def _node_removed(parts: ClusterParts, node: Node, _: float) -> Sequence[Effect]:
    name = node.metadata.name
    parts.ledger.remove_node(name)
    parts.pods.remove_node(name)
    parts.unreadable_nodes.drop(name)
    return [Changed(name)]


def _unreadable_node(parts: ClusterParts, node: Node) -> Sequence[RecordEvent]:
    name = node.metadata.name
    problem = parts.ledger.nodes.problem(name)
    # The uid is the name, as in kubelet's events: `kubectl describe node` looks for that.
    return parts.unreadable_nodes.update(
        name, problem, lambda: ObjectReference(api_version="v1", kind="Node", name=name, uid=name)
    )


def _pods_listed(parts: ClusterParts, event: events.Listed[Pod], _: float) -> Sequence[Effect]:
    pods = event.objects
    uids = {pod_key(pod) for pod in pods}
    parts.ledger.replace_pods(pods, event.version)
    parts.pods.replace_pods(pods)
    parts.gangs.clear()
    for pod in pods:
        parts.gangs.apply_pod(pod, with_gpus=parts.pods.concerns_gpus(pod))
    parts.wishes.replace(pods)
    parts.end_nominations(parts.nominations.without(uids))
    parts.unreadable_pods.keep_only(uids)
    found = (effect for pod in pods for effect in (*_nominated(parts, pod), *_unreadable_pod(parts, pod)))
    wished = (_WISHED,) if parts.wishes.every() else ()
    return [_EVERYTHING_CHANGED, *wished, *found]


def _pod_applied(parts: ClusterParts, pod: Pod, now: float) -> Sequence[Effect]:
    uid, asides = pod_key(pod), len(parts.ledger.set_asides)
    held = parts.ledger.records.bound(uid)
    if pod.has_ended:
        parts.refusals.dropped(parts.ledger.records.get(uid), pod)
    parts.ledger.apply_pod(pod)
    parts.gangs.apply_pod(pod, with_gpus=parts.pods.concerns_gpus(pod))
    name = pod_name(pod)
    before = parts.pods.pod(name)
    if before is None and not parts.pods.concerns_gpus(pod):
        return _unreadable_pod(parts, pod)
    parts.pods.apply_pod(pod)
    if pod.spec.node_name:
        parts.queue.settled(uid)
        if before is None or not before.node:
            parts.history.add(uid, now, f"it was seen on node {pod.spec.node_name}")
            parts.log.add(now, name, LogKind.BOUND, pod.spec.node_name)
    opens = len(parts.ledger.set_asides) < asides
    has_room = opens or pod.has_ended or _has_shrunk(held, parts.ledger.records.bound(uid))
    freed = (_FREED,) if has_room else ()
    wished = (_WISHED,) if parts.wishes.apply(pod) else ()
    return [Changed(name), *freed, *wished, *_nominated(parts, pod), *_unreadable_pod(parts, pod)]


def _has_shrunk(before: PodRecord | None, after: PodRecord | None) -> bool:
    """Returns whether a pod that runs on has given memory back."""
    if before is None or after is None or before.gpus.footprints == after.gpus.footprints:
        return False
    return total(after.gpus.footprints.values()).memory_mib < total(before.gpus.footprints.values()).memory_mib


def _pod_removed(parts: ClusterParts, pod: Pod, now: float) -> Sequence[Effect]:
    uid, deleted_at = pod_key(pod), version_number(pod.metadata.resource_version)
    parts.refusals.dropped(parts.ledger.records.get(uid))
    parts.ledger.remove_pod(uid, now + OUTLIVING_SECONDS if outlives(pod) else None, deleted_at=deleted_at)
    parts.gangs.remove_pod(uid)
    parts.wishes.remove(uid)
    parts.departs(uid, pod_name(pod))
    parts.unreadable_pods.drop(uid)
    # A pod without GPUs may have lost annotations of a GPU scheduler.
    if parts.pods.pod(pod_name(pod)) is None and not parts.pods.concerns_gpus(pod):
        return _NOTHING
    parts.pods.remove_pod(pod)
    parts.queue.settled(uid)
    parts.end_nominations([uid])
    parts.history.go_on(uid, now, "it was deleted")
    parts.log.add(now, pod_name(pod), LogKind.DELETED, pod.spec.node_name)
    return [Changed(pod_name(pod)), _FREED]


def _pod_read(parts: ClusterParts, event: events.PodRead, _: float) -> Sequence[Effect]:
    parts.pods.apply_pod(event.pod)
    return [Changed(pod_name(event.pod))]


def _unreadable_pod(parts: ClusterParts, pod: Pod) -> Sequence[RecordEvent]:
    uid = pod_key(pod)
    record = parts.ledger.records.bound(uid)
    problem = record.problem if record is not None else ""
    if not problem:
        parts.unreadable_pods.drop(uid)
        return ()
    if record is not None and not (record.gpus.undecided or record.gpus.everywhere or record.remembered):
        problem = f"{problem}; until it is corrected the GPUs that it may concern count as full"
    return parts.unreadable_pods.update(uid, problem, lambda: pod.reference)


def _quota_applied(parts: ClusterParts, quota: ResourceQuota, _: float) -> Sequence[Effect]:
    parts.ledger.quotas.apply(quota)
    return (_FREED,)


def _quota_removed(parts: ClusterParts, quota: ResourceQuota, _: float) -> Sequence[Effect]:
    parts.ledger.quotas.remove(quota)
    return (_FREED,)


def _group_applied(parts: ClusterParts, group: PodGroup, _: float) -> Sequence[Effect]:
    return (_FREED,) if parts.gangs.apply_object(group) else _NOTHING


def _proposed(parts: ClusterParts, event: events.Proposed, _: float) -> Sequence[Effect]:
    pod, uid = event.pod, pod_key(event.pod)
    is_nominated = pod.status.nominated_node_name in event.victims_of
    if is_nominated:
        parts.end_nominations([uid])
    parts.nominations.propose(uid, event.victims_of)
    if event.victims_of:
        parts.ledger.groups.preempts(pod)
    # The nomination was there already, so no change of the pod may follow.
    return _nominated(parts, pod) if is_nominated else _NOTHING


def _nominated(parts: ClusterParts, pod: Pod) -> Sequence[Effect]:
    """Returns the effect of a new nomination. A pod that has a reservation is nominated because kube-scheduler is
    about to bind it, and needs no room.
    """
    if not pod.status.nominated_node_name and pod_key(pod) not in parts.nominations:
        return _NOTHING
    if parts.nominations.is_over(pod):
        parts.end_nominations([pod_key(pod)])
    elif parts.nominations.is_new(pod) and parts.ledger.records.reserved(pod_key(pod)) is None:
        return (Nominated(pod, pod.status.nominated_node_name),)
    return _NOTHING


_GROUPS = (PodGroup, CoschedulingPodGroup, VolcanoPodGroup)
_LISTED: Mapping[type, Handler] = {
    Node: _nodes_listed,
    Pod: _pods_listed,
    ResourceQuota: lambda parts, event, _: parts.ledger.quotas.replace(event.objects),
    PodDisruptionBudget: lambda parts, event, _: parts.budgets.replace(event.objects),
    **dict.fromkeys(_GROUPS, lambda parts, event, _: parts.gangs.replace_objects(event.kind, event.objects)),
}
_APPLIED: Mapping[type, Handler] = {
    Node: _node_applied,
    Pod: _pod_applied,
    ResourceQuota: _quota_applied,
    PodDisruptionBudget: lambda parts, budget, _: parts.budgets.apply(budget),
    **dict.fromkeys(_GROUPS, _group_applied),
}
_REMOVED: Mapping[type, Handler] = {
    Node: _node_removed,
    Pod: _pod_removed,
    ResourceQuota: _quota_removed,
    PodDisruptionBudget: lambda parts, budget, _: parts.budgets.remove(budget),
    **dict.fromkeys(_GROUPS, lambda parts, group, _: parts.gangs.remove_object(group)),
}
HANDLERS: Mapping[type[ClusterEvent], Handler] = {
    events.Listed: lambda parts, event, now: _LISTED[event.kind](parts, event, now),
    events.Applied: lambda parts, event, now: _APPLIED[type(event.object)](parts, event.object, now),
    events.Removed: lambda parts, event, now: _REMOVED[type(event.object)](parts, event.object, now),
    events.PodWatchLost: lambda parts, *_: parts.ledger.watched(inf),
    events.PodWatchBack: lambda parts, _, now: parts.ledger.watched(now),
    events.PodRead: _pod_read,
    events.Proposed: _proposed,
}
