"""`hami.io/mutex.lock`: which pod a HAMi-style node is being allocated for.

`<RFC 3339>,<namespace>,<pod>`, or a bare time stamp from very old schedulers. Our extender also writes
`topogpu.io/lock-uid`, the lock's value and its pod's UID, so that a later pod of the same name is not taken for its
owner. On the pod are `hami.io/bind-phase` and the Unix times `hami.io/bind-time` and `hami.io/vgpu-time`.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from proto.annotations.errors import AnnotationError
from proto.annotations.keys import NODE_LOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLock:
    """The pod that holds a node, and since when. `namespace` and `pod` are empty in the legacy form."""

    taken_at: datetime
    namespace: str = ""
    pod: str = ""


def encode_lock(lock: NodeLock) -> str:
    """Writes the lock, with the time in whole seconds and UTC as `Z`."""
    stamp = lock.taken_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"{stamp},{lock.namespace},{lock.pod}" if lock.pod else stamp


def decode_lock(value: str) -> NodeLock:
    """Reads a lock. Raises AnnotationError for any other number of parts and for a time without an offset."""
    stamp, *owner = value.split(",")
    if len(owner) not in (0, 2):
        raise AnnotationError(NODE_LOCK, "", f"expected <time>,<namespace>,<pod>, found {value!r}")
    try:
        taken_at = datetime.fromisoformat(stamp)
    except ValueError as error:
        raise AnnotationError(NODE_LOCK, "time", str(error)) from None
    if taken_at.tzinfo is None:
        raise AnnotationError(NODE_LOCK, "time", f"{stamp!r} has no time zone")
    if not owner:
        return NodeLock(taken_at=taken_at)
    namespace, pod = owner
    if not (namespace and pod):
        raise AnnotationError(NODE_LOCK, "owner", f"expected <namespace>,<pod>, found {value!r}")
    return NodeLock(taken_at=taken_at, namespace=namespace, pod=pod)


def encode_lock_uid(lock: str, uid: str) -> str:
    """Returns the value of `topogpu.io/lock-uid` for the lock annotation `lock`."""
    return f"{lock},{uid}"


def decode_lock_uid(lock: str, beside: str) -> str:
    """Reads the owner's UID; empty when the annotation is missing or belongs to another lock."""
    value, _, uid = beside.rpartition(",")
    return uid if lock and value == lock else ""


class BindPhase(StrEnum):
    ALLOCATING = "allocating"
    SUCCESS = "success"
    FAILED = "failed"


def encode_time(at: datetime) -> str:
    """Writes whole Unix seconds in decimal."""
    return str(int(at.timestamp()))
