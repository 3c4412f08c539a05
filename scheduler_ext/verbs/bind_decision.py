"""Decides what follows for a bind from what is known, or was read, of its pod: its GPUs, next event, and Binding."""

from datetime import datetime
from typing import NamedTuple

from msgspec.structs import replace

from proto.annotations.keys import (
    BIND_PHASE,
    BIND_TIME,
    DEVICES_ALLOCATED,
    DEVICES_TO_ALLOCATE,
    MIG_ALLOCATIONS,
    POD_NODE,
    POD_TIME,
)
from proto.annotations.mig_allocations import encode_mig_allocations, mig_allocations
from proto.annotations.node_lock import BindPhase, encode_time
from proto.annotations.pod_devices import encode_pod_devices
from proto.devices import PodShares
from proto.kubernetes.objects import Binding, ObjectMeta, ObjectReference, Pod
from scheduler_ext.cluster.events import Decided, GroupUndone, NodeChosen, RoomsGivenUp, TimePassed
from scheduler_ext.cluster.groups import required_level
from scheduler_ext.cluster.pod_index import PodIndex, PodName
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.decide.decision import decide
from scheduler_ext.decide.preempt import decide_in_room_of_others
from scheduler_ext.domains.levels import word
from scheduler_ext.membership import group_of
from scheduler_ext.requests import RequestError, pod_key, read_request
from scheduler_ext.verbs.state_machine import BindAttempt, BindEvent


class BindRefused(Exception):
    """The bind cannot continue. The message is the sentence for kube-scheduler."""

    event = BindEvent.STOPPED


class BindImpossible(BindRefused):
    """Nothing that was sent for the pod can be carried out any more."""

    event = BindEvent.IMPOSSIBLE


class DecidedAttempt(NamedTuple):
    """The attempt with its GPUs, and its next event."""

    attempt: BindAttempt
    event: BindEvent


def watched_event(pods: PodIndex, attempt: BindAttempt) -> BindEvent | None:
    """Returns the event if the watch shows that the pod has the node; None if it shows none. Raises BindImpossible if
    it is another node.
    """
    known = pods.pod(attempt.pod)
    if known is None or not known.node or known.uid != attempt.uid:
        return None
    return _has_node(attempt, known.node)


def decide_unread(cluster: Cluster, attempt: BindAttempt, *, now: float, until: float) -> DecidedAttempt | None:
    """Decides by what the watch has shown and `/filter` has decided. Returns None if the pod must be read. Raises
    BindRefused.
    """
    event = watched_event(cluster.pods, attempt)
    if event is not None:
        return DecidedAttempt(attempt, event)
    shares = _reserved(cluster, attempt, now=now, until=until)
    return None if shares is None else DecidedAttempt(replace(attempt, shares=shares), BindEvent.DECIDED)


def decide_read(cluster: Cluster, attempt: BindAttempt, pod: Pod | None, *, now: float, until: float) -> DecidedAttempt:
    """Decides by the pod that was read; `pod` is None if there is none of its name. Raises BindRefused."""
    pod = _bindable(attempt, pod)
    attempt = replace(attempt, uid=attempt.uid or pod_key(pod))
    if pod.spec.node_name:
        return DecidedAttempt(attempt, _has_node(attempt, pod.spec.node_name))
    shares = _reserved(cluster, attempt, now=now, until=until)
    shares = shares or _decide_again(cluster, pod, attempt, now=now, until=until)
    return DecidedAttempt(replace(attempt, shares=shares), BindEvent.DECIDED)


def event_after_conflict(attempt: BindAttempt, pod: Pod | None) -> BindEvent:
    """Returns the event for a pod that was read because the API server refused its Binding. Raises BindRefused."""
    node = _bindable(attempt, pod).spec.node_name
    return _has_node(attempt, node) if node else BindEvent.NOT_BOUND


def is_unsettled(cluster: Cluster, attempt: BindAttempt, now: float) -> bool:
    """Returns whether the reservation is still held for what this attempt sent, and for nothing later."""
    cluster.apply(TimePassed(), now)
    reservation = cluster.ledger.records.reserved(attempt.uid)
    return reservation is not None and reservation.sent_by == attempt.number


def event_after_settling(
    cluster: Cluster, attempt: BindAttempt, pod: Pod | None, *, is_binding: bool, now: float
) -> BindEvent:
    """Returns the outcome of a Binding that can no longer be carried out, by the pod that was read. `is_binding` is
    true if another bind of the pod has begun.
    """
    if pod is not None and pod.metadata.uid == attempt.uid and pod.spec.node_name == attempt.node:
        # The watch will show it; until then it is held from memory.
        return BindEvent.HAS_NODE
    if not is_unsettled(cluster, attempt, now):
        return BindEvent.OVERTAKEN
    # A bind that has begun meanwhile has newer knowledge.
    return BindEvent.UNKNOWN if is_binding else BindEvent.NOT_BOUND


def event_after_restart(
    cluster: Cluster, attempt: BindAttempt, pod: Pod | None, *, now: float, until: float
) -> BindEvent:
    """Returns the event for an attempt of the previous process, by the pod that was read. Reserves its GPUs until
    `until` if its Binding may still be carried out.
    """
    try:
        pod = _bindable(attempt, pod)
    except BindRefused:
        return BindEvent.IMPOSSIBLE
    if pod.spec.node_name:
        return BindEvent.HAS_NODE
    cluster.apply(Decided(attempt.uid, pod, attempt.node, attempt.shares or (), until), now)
    return BindEvent.NOT_BOUND


def _bindable(attempt: BindAttempt, pod: Pod | None) -> Pod:
    """Returns the pod that was read; `pod` is None if there is none of its name. Raises BindRefused if it cannot be
    bound.
    """
    if pod is None:
        raise BindImpossible("the pod is gone")
    if attempt.uid and pod.metadata.uid != attempt.uid:
        raise BindImpossible(f"the pod was created again, uid {attempt.uid} is gone")
    if pod.metadata.deletion_timestamp:
        raise (BindRefused if pod.spec.node_name else BindImpossible)("the pod is being deleted")
    return pod


def _has_node(attempt: BindAttempt, node: str) -> BindEvent:
    """Returns the event for a pod that has this node. Raises BindImpossible if the attempt has another one."""
    if node != attempt.node:
        raise BindImpossible(f"it is already bound to node {node}")
    return BindEvent.HAS_NODE


def _reserved(cluster: Cluster, attempt: BindAttempt, *, now: float, until: float) -> PodShares | None:
    """Returns what `/filter` decided for this node, and holds it until `until`, in monotonic seconds; None without a
    decision. Raises BindRefused if its group would no longer be in one domain, and frees it.
    """
    cluster.apply(NodeChosen(attempt.uid, attempt.node, until), now)
    reservation = cluster.ledger.records.reserved(attempt.uid)
    if reservation is None:
        return None
    outside = _outside(cluster, attempt, reservation.pending.group, reservation.pending.required)
    if outside:
        cluster.apply(GroupUndone((attempt.uid,), ()), now)
        raise BindRefused(outside)
    return reservation.decided.get(attempt.node)


def _outside(cluster: Cluster, attempt: BindAttempt, group: str, level: str) -> str:
    """Returns why the node is not in the domain of the level that the group requires, by the labels of now; empty if it
    is. All members that are bound or being bound have to be there, else one that holds GPUs.
    """
    if not group or not level:
        return ""
    groups, domains = cluster.ledger.groups, cluster.ledger.nodes.domains
    own = domains(attempt.node).get(level)
    if own is None:
        return f"the node is in no {word(level)} any more, which its group requires"
    # Of a group that is split already no further pod is bound: `/filter` refuses it, too.
    bound = {domains(node).get(level) for node in cluster.gangs.nodes(group)}
    bound |= {domains(node).get(level) for node in groups.others(group, attempt.uid, binding=True)}
    held = {domains(node).get(level) for node in groups.others(group, attempt.uid, binding=False)}
    if (bound <= {own}) if bound else (not held or own in held):
        return ""
    return f"the node is not in the {word(level)} of its group's other pods"


def _decide_again(cluster: Cluster, pod: Pod, attempt: BindAttempt, *, now: float, until: float) -> PodShares | None:
    """Decides for this one node and reserves. Returns None for a pod without GPUs. Raises BindRefused if it no longer
    fits.
    """
    try:
        request = read_request(pod, cluster.requests)
    except RequestError as error:
        raise BindRefused(str(error)) from error
    if request is None:
        return None
    uid, node, ledger = attempt.uid, attempt.node, cluster.ledger
    outside = _outside(cluster, attempt, group_of(pod), required_level(request))
    if outside:
        raise BindRefused(outside)
    sent_to = ledger.records.sent_to(uid)
    if sent_to:
        raise BindRefused(f"its Binding to node {sent_to} may have been written already")
    exceeded = ledger.kubelet.refusing(pod, [node]).get(node)
    if exceeded:
        raise BindRefused(f"kubelet would refuse it: the node's pods ask for more {exceeded} than the Node has")
    decision = decide(request, ledger.snapshot(uid), [node])
    if decision.node is None:
        taken = decide_in_room_of_others(cluster.ledger, request, pod.spec.priority or 0, [node])
        if taken is not None:
            decision = taken.decision
            cluster.apply(RoomsGivenUp(taken.uids), now)
    if decision.node is None:
        why = decision.error or decision.failed.get(node, "the pod does not fit")
        raise BindRefused(f"it has no reservation there and does not fit: {why}")
    cluster.apply(Decided(uid, pod, node, decision.shares, until), now)
    return decision.shares


LONGEST_LABEL_VALUE = 63


def binding_of(
    pod: PodName, uid: str, node: str, shares: PodShares | None, now: datetime, *, phase: BindPhase
) -> Binding:
    """Returns a Binding that carries the decision; `shares` is None for a pod that requests no GPU.

    `phase` is `allocating` if the node's plugin reports the result, and `success` if not: with slots the pod has its
    devices as soon as it is bound. The uid makes the API server refuse a later pod of the same name.
    """
    metadata = ObjectMeta(name=pod.name, namespace=pod.namespace, uid=uid)
    if shares is not None:
        metadata.annotations = _annotations(node, shares, now, phase)
        # Only HAMi's monitor reads the label. A longer node name cannot be a label value.
        metadata.labels = {POD_NODE: node} if len(node) <= LONGEST_LABEL_VALUE else {}
    target = ObjectReference(api_version="v1", kind="Node", name=node)
    return Binding(metadata=metadata, target=target)


def _annotations(node: str, shares: PodShares, now: datetime, phase: BindPhase) -> dict[str, str]:
    devices, instances = encode_pod_devices(shares), mig_allocations(shares)
    return {
        POD_NODE: node,
        POD_TIME: encode_time(now),
        DEVICES_TO_ALLOCATE: devices,
        DEVICES_ALLOCATED: devices,
        BIND_PHASE: phase.value,
        BIND_TIME: encode_time(now),
        **({MIG_ALLOCATIONS: encode_mig_allocations(instances)} if instances else {}),
    }
