"""The node lock `hami.io/mutex.lock`: whether a pod may take it now, and if not, until when it must wait.

The rules are HAMi's (scheduler side, pkg/util/nodelock) with three differences. An unreadable value expires and does
not block the node for ever. A time stamp from the future cannot extend the lock. A node of our daemon is free as soon
as the owner has its devices.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from proto.annotations.errors import readable
from proto.annotations.node_lock import BindPhase, NodeLock, decode_lock, encode_lock
from scheduler_ext.cluster.pod_index import PodEntry, PodName


@dataclass(frozen=True, slots=True, kw_only=True)
class LockWait:
    """Another pod's allocation is under way; the lock expires at `until` at the latest."""

    until: datetime
    why: str


def lacks_devices(pod: PodEntry | None, node: str, *, served_by_hami: bool) -> bool:
    """Returns whether the pod that a lock on `node` names waits for its devices there. `pod` is None if it does not
    exist.

    HAMi's daemon writes that the pod is served, and removes the lock after that; 2.4's removes whatever lock is there
    by then (pkg/util/nodelock, ReleaseNodeLock). So the next pod must not take it earlier.
    """
    if pod is None or pod.ended or pod.node not in ("", node):
        return False
    return not pod.node or served_by_hami or pod.phase not in (BindPhase.SUCCESS, BindPhase.FAILED)


def owner_of(value: str) -> PodName | None:
    """Returns the pod that a lock names; None for an unreadable value or one without an owner."""
    lock = readable(decode_lock, value)
    return PodName(namespace=lock.namespace, name=lock.pod) if lock and lock.pod else None


def lock_to_write(
    value: str, pod: PodName, *, owner_waits: bool, first_seen: datetime, now: datetime, ttl: timedelta
) -> str | LockWait:
    """Returns what `pod` writes to take a node whose lock annotation reads `value` (empty: no lock), or why it waits.

    `owner_waits` is true if the pod that the lock names lacks its devices, and is ignored if it names none.
    `first_seen` is when we first saw this value.
    """
    taken = encode_lock(NodeLock(taken_at=now.astimezone(UTC), namespace=pod.namespace, pod=pod.name))
    if not value:
        return taken
    lock = readable(decode_lock, value)
    expires_at = (min(lock.taken_at, first_seen) if lock else first_seen) + ttl
    if now >= expires_at:
        return taken
    ends = f"ends at {expires_at.astimezone(UTC).isoformat(timespec='seconds')} at the latest"
    if lock is None or not lock.pod:
        return LockWait(until=expires_at, why=f"its lock {value!r} names no pod; it {ends}")
    if not owner_waits:
        return taken
    holder = PodName(namespace=lock.namespace, name=lock.pod)
    return LockWait(until=expires_at, why=f"pod {holder} holds its lock since {lock.taken_at.isoformat()}; it {ends}")


def is_held_by(value: str, remembered_uid: str, pod: PodName, uid: str) -> bool:
    """Returns whether this very pod has the lock. `remembered_uid` is written beside the lock; HAMi's locks
    have none.
    """
    return owner_of(value) == pod and remembered_uid in ("", uid)
