"""The node lock `hami.io/mutex.lock`: whether a pod may take it now, and if not, until when it must wait.

The rules are HAMi's (scheduler side, pkg/util/nodelock) with three differences. An unreadable value expires and does
not block the node for ever. A time stamp from the future cannot extend the lock. A node of our daemon is free as soon
as the owner has its devices.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum

from proto.annotations.bind_phase import BindPhase
from proto.annotations.errors import AnnotationError
from proto.annotations.node_lock import NodeLock, decode_lock, encode_lock
from scheduler_ext.cluster.pod_index import PodEntry, PodName


class Owner(Enum):
    """The state of the pod that a lock names."""

    OURSELVES = "ourselves"
    """The same pod, not an earlier one of the same name. It takes its lock again: the watch may not have shown the
    release yet.
    """
    WAITING = "waiting"
    """A pod that does not have its devices yet, or whose lock the node's daemon, which is HAMi's, has not
    removed yet.
    """
    SERVED = "served"
    """A pod that is bound to the node, with the bind phase success or failed."""
    ELSEWHERE = "elsewhere"
    """A pod that is bound to another node."""
    GONE = "gone"
    """A pod that was deleted, or whose containers have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """The pod may take the lock: it writes `value` over the lock that was seen."""

    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Another pod's allocation is under way; the lock expires at `until` at the latest."""

    until: datetime
    why: str


def owner_state(pod: PodEntry | None, node: str, *, served_by_hami: bool) -> Owner:
    """Returns the state of the pod that a lock on `node` names. `pod` is None if it does not exist.

    HAMi's daemon writes that the pod is served, and removes the lock after that; 2.4's removes whatever lock is there
    by then (pkg/util/nodelock, ReleaseNodeLock). So the next pod must not take it earlier.
    """
    if pod is None or pod.ended:
        return Owner.GONE
    if pod.node and pod.node != node:
        return Owner.ELSEWHERE
    if pod.node and pod.phase in (BindPhase.SUCCESS, BindPhase.FAILED) and not served_by_hami:
        return Owner.SERVED
    return Owner.WAITING


def owner_of(value: str) -> PodName | None:
    """Returns the pod that a lock names; None for an unreadable value or one without an owner."""
    lock = _read(value)
    return PodName(namespace=lock.namespace, name=lock.pod) if lock and lock.pod else None


def judge(
    value: str, pod: PodName, owner: Owner, *, first_seen: datetime, now: datetime, ttl: timedelta
) -> Take | Wait:
    """Returns whether `pod` may take a node whose lock annotation reads `value` (empty: no lock).

    `owner` is the state of the pod that the lock names, and is ignored if it names none. `first_seen` is when we first
    saw this value.
    """
    take = Take(value=encode_lock(NodeLock(taken_at=now.astimezone(UTC), namespace=pod.namespace, pod=pod.name)))
    if not value:
        return take
    lock = _read(value)
    expires_at = (min(lock.taken_at, first_seen) if lock else first_seen) + ttl
    if now >= expires_at:
        return take
    ends = f"ends at {expires_at.astimezone(UTC).isoformat(timespec='seconds')} at the latest"
    if lock is None or not lock.pod:
        return Wait(until=expires_at, why=f"its lock {value!r} names no pod; it {ends}")
    if owner is Owner.WAITING:
        holder = PodName(namespace=lock.namespace, name=lock.pod)
        return Wait(until=expires_at, why=f"pod {holder} holds its lock since {lock.taken_at.isoformat()}; it {ends}")
    return take


def is_held_by(value: str, remembered_uid: str, pod: PodName, uid: str) -> bool:
    """Returns whether this very pod has the lock. `remembered_uid` is written beside the lock; HAMi's locks
    have none.
    """
    return owner_of(value) == pod and remembered_uid in ("", uid)


def _read(value: str) -> NodeLock | None:
    try:
        return decode_lock(value)
    except AnnotationError:
        return None
