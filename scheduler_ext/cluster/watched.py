"""What the API server shows changes the cluster's state, and wakes what waits for it outside."""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from proto.kubernetes.objects import (
    Node,
    Notice,
    ObjectReference,
    Pod,
    PodDisruptionBudget,
    ResourceQuota,
    version_number,
)
from scheduler_ext.cluster import events
from scheduler_ext.cluster.bound import OUTLIVING_SECONDS, outlives
from scheduler_ext.cluster.events import Changed, ClusterEvent, Effect, Freed, Nominated, RecordEvent, Wished
from scheduler_ext.cluster.gangs import SOURCES
from scheduler_ext.cluster.history import LogKind
from scheduler_ext.cluster.pod_index import pod_name
from scheduler_ext.cluster.records import PodRecord
from scheduler_ext.requests import pod_key

if TYPE_CHECKING:
    from scheduler_ext.cluster.state import Cluster

Handler = Callable[["Cluster", Any, float], Sequence[Effect] | None]

_FREED, _WISHED = Freed(), Wished()
_EVERYTHING_CHANGED = Changed()


def _nodes_listed(cluster: "Cluster", event: events.Listed[Node], _: float) -> Sequence[Effect]:
    nodes, problem = event.objects, cluster.ledger.nodes.problem
    before = [problem(node.metadata.name) for node in nodes]
    cluster.ledger.replace_nodes(nodes)
    cluster.pods.replace_nodes(nodes)
    found = (effect for each in zip(nodes, before, strict=True) for effect in _unreadable_node(cluster, *each))
    return [_EVERYTHING_CHANGED, *found]


def _node_applied(cluster: "Cluster", node: Node, _: float) -> Sequence[Effect]:
    name, nodes = node.metadata.name, cluster.ledger.nodes
    domains, problem = nodes.domains(name), nodes.problem(name)
    cluster.ledger.apply_node(node)
    offers_others = cluster.pods.apply_node(node)
    freed = (_FREED,) if offers_others or nodes.domains(name) != domains else ()
    return [Changed(name), *freed, *_unreadable_node(cluster, node, problem)]


def _node_removed(cluster: "Cluster", node: Node, _: float) -> Sequence[Effect]:
    name = node.metadata.name
    cluster.ledger.remove_node(name)
    cluster.pods.remove_node(name)
    return [Changed(name)]


def _unreadable_node(cluster: "Cluster", node: Node, before: str) -> Sequence[RecordEvent]:
    """Reports the problem of the node unless it was there `before`."""
    name, problem = node.metadata.name, cluster.ledger.nodes.problem(node.metadata.name)
    if problem in ("", before):
        return ()
    # The uid is the name, as in kubelet's events: `kubectl describe node` looks for that.
    subject = ObjectReference(api_version="v1", kind="Node", name=name, uid=name)
    return (RecordEvent(subject, Notice(reason="UnreadableRegistration", message=problem, distinct=True)),)


def _pods_listed(cluster: "Cluster", event: events.Listed[Pod], _: float) -> Sequence[Effect]:
    pods, before = event.objects, cluster.ledger.records.problems()
    uids = {pod_key(pod) for pod in pods}
    cluster.ledger.replace_pods(pods, event.version)
    cluster.pods.replace_pods(pods)
    cluster.gangs.clear()
    for pod in pods:
        cluster.gangs.apply_pod(pod, with_gpus=cluster.pods.concerns_gpus(pod))
    cluster.wishes.replace(pods)
    cluster.end_nominations(cluster.nominations.without(uids))
    found = (effect for pod in pods for effect in (*_nominated(cluster, pod), *_unreadable_pod(cluster, pod, before)))
    wished = (_WISHED,) if cluster.wishes.every() else ()
    return [_EVERYTHING_CHANGED, *wished, *found]


def _pod_applied(cluster: "Cluster", pod: Pod, now: float) -> Sequence[Effect]:
    uid, asides = pod_key(pod), len(cluster.ledger.set_asides)
    held = cluster.ledger.records.bound(uid)
    problem = {} if held is None else {uid: held.problem}
    if pod.has_ended:
        cluster.refusals.dropped(cluster.ledger.records.get(uid), pod)
    cluster.ledger.apply_pod(pod)
    name, with_gpus = pod_name(pod), cluster.pods.concerns_gpus(pod)
    cluster.gangs.apply_pod(pod, with_gpus=with_gpus)
    before = cluster.pods.pod(name)
    if before is None and not with_gpus:
        return _unreadable_pod(cluster, pod, problem)
    cluster.pods.apply_pod(pod)
    if pod.spec.node_name:
        cluster.queue.remove(uid)
        if before is None or not before.node:
            cluster.history.add(uid, now, f"it was seen on node {pod.spec.node_name}")
            cluster.log.add(now, name, LogKind.BOUND, pod.spec.node_name)
    opens = len(cluster.ledger.set_asides) < asides
    has_room = opens or pod.has_ended or _has_shrunk(held, cluster.ledger.records.bound(uid))
    freed = (_FREED,) if has_room else ()
    wished = (_WISHED,) if cluster.wishes.apply(pod) else ()
    return [Changed(name), *freed, *wished, *_nominated(cluster, pod), *_unreadable_pod(cluster, pod, problem)]


def _has_shrunk(before: PodRecord | None, after: PodRecord | None) -> bool:
    """Returns whether a pod that runs on has given memory back."""
    if before is None or after is None or before.gpus.footprints == after.gpus.footprints:
        return False
    held, left = (sum(each.memory_mib for each in one.gpus.footprints.values()) for one in (before, after))
    return left < held


def _pod_removed(cluster: "Cluster", pod: Pod, now: float) -> Sequence[Effect]:
    uid, deleted_at = pod_key(pod), version_number(pod.metadata.resource_version)
    cluster.refusals.dropped(cluster.ledger.records.get(uid))
    until, name = now + OUTLIVING_SECONDS if outlives(pod) else None, pod_name(pod)
    cluster.ledger.remove_pod(uid, until, deleted_at=deleted_at, name=str(name))
    cluster.gangs.remove_pod(uid)
    cluster.wishes.remove(uid)
    # A pod without GPUs may have lost annotations of a GPU scheduler.
    if cluster.pods.pod(name) is None and not cluster.pods.concerns_gpus(pod):
        return ()
    cluster.pods.remove_pod(pod)
    cluster.queue.remove(uid)
    cluster.end_nominations([uid])
    cluster.history.add_known(uid, now, "it was deleted")
    cluster.log.add(now, name, LogKind.DELETED, pod.spec.node_name)
    return [Changed(name), _FREED]


def _pod_read(cluster: "Cluster", event: events.PodRead, _: float) -> Sequence[Effect]:
    cluster.pods.apply_pod(event.pod)
    return [Changed(pod_name(event.pod))]


def _unreadable_pod(cluster: "Cluster", pod: Pod, before: Mapping[str, str]) -> Sequence[RecordEvent]:
    """Reports the problem of the pod unless it was there `before`, by UID."""
    record = cluster.ledger.records.bound(pod_key(pod))
    if record is None or record.problem in ("", before.get(record.uid)):
        return ()
    is_known = record.gpus.undecided or record.gpus.everywhere or record.remembered
    until = "" if is_known else "; until it is corrected the GPUs that it may concern count as full"
    notice = Notice(reason="UnreadableAllocation", message=record.problem + until, distinct=True)
    return (RecordEvent(pod.reference, notice),)


def _quota_applied(cluster: "Cluster", quota: ResourceQuota, _: float) -> Sequence[Effect]:
    cluster.ledger.quotas.apply(quota)
    return (_FREED,)


def _quota_removed(cluster: "Cluster", quota: ResourceQuota, _: float) -> Sequence[Effect]:
    cluster.ledger.quotas.remove(quota)
    return (_FREED,)


def _proposed(cluster: "Cluster", event: events.Proposed, _: float) -> Sequence[Effect]:
    pod, uid = event.pod, pod_key(event.pod)
    is_nominated = pod.status.nominated_node_name in event.victims_of
    if is_nominated:
        cluster.end_nominations([uid])
    cluster.nominations.propose(uid, event.victims_of)
    if event.victims_of:
        cluster.ledger.groups.preempts(pod)
    # The nomination was there already, so no change of the pod may follow.
    return _nominated(cluster, pod) if is_nominated else ()


def _nominated(cluster: "Cluster", pod: Pod) -> Sequence[Effect]:
    """Returns the effect of a new nomination. A pod that has a reservation is nominated because kube-scheduler is
    about to bind it, and needs no room.
    """
    if not pod.status.nominated_node_name and pod_key(pod) not in cluster.nominations:
        return ()
    if cluster.nominations.is_over(pod):
        cluster.end_nominations([pod_key(pod)])
    elif cluster.nominations.is_new(pod) and cluster.ledger.records.reserved(pod_key(pod)) is None:
        return (Nominated(pod, pod.status.nominated_node_name),)
    return ()


_LISTED: Mapping[type, Handler] = {
    Node: _nodes_listed,
    Pod: _pods_listed,
    ResourceQuota: lambda cluster, event, _: cluster.ledger.quotas.replace(event.objects),
    PodDisruptionBudget: lambda cluster, event, _: cluster.budgets.replace(event.objects),
    **dict.fromkeys(SOURCES, lambda cluster, event, _: cluster.gangs.replace_objects(event.kind, event.objects)),
}
_APPLIED: Mapping[type, Handler] = {
    Node: _node_applied,
    Pod: _pod_applied,
    ResourceQuota: _quota_applied,
    PodDisruptionBudget: lambda cluster, budget, _: cluster.budgets.apply(budget),
    **dict.fromkeys(SOURCES, lambda cluster, group, _: (_FREED,) if cluster.gangs.apply_object(group) else None),
}
_REMOVED: Mapping[type, Handler] = {
    Node: _node_removed,
    Pod: _pod_removed,
    ResourceQuota: _quota_removed,
    PodDisruptionBudget: lambda cluster, budget, _: cluster.budgets.remove(budget),
    **dict.fromkeys(SOURCES, lambda cluster, group, _: cluster.gangs.remove_object(group)),
}
HANDLERS: Mapping[type[ClusterEvent], Handler] = {
    events.Listed: lambda cluster, event, now: _LISTED[event.kind](cluster, event, now),
    events.Applied: lambda cluster, event, now: _APPLIED[type(event.object)](cluster, event.object, now),
    events.Removed: lambda cluster, event, now: _REMOVED[type(event.object)](cluster, event.object, now),
    events.PodWatch: lambda cluster, event, now: cluster.ledger.watched(now if event.works else inf),
    events.PodRead: _pod_read,
    events.Proposed: _proposed,
}
