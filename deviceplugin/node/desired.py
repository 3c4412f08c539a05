"""The part of the Node that one contributor wants, and the patch that makes the Node have it. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from proto.annotations.unhealthy_since import stamp
from proto.kubernetes.objects import Condition, Node
from proto.quantity import QuantityError, integer_quantity

NO_TIME = datetime.min.replace(tzinfo=UTC)
"""The time of a patch that sets no condition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """A part of the Node. None takes an entry away; entries that are not named stay as they are."""

    annotations: Mapping[str, str | None] = field(default_factory=dict)
    labels: Mapping[str, str | None] = field(default_factory=dict)
    taints: Mapping[str, str | None] = field(default_factory=dict)
    """Effects of taints by key."""
    totals: Mapping[str, int | None] = field(default_factory=dict)
    """Amounts of resources, in the Node's capacity and allocatable."""
    conditions: Mapping[str, Condition | None] = field(default_factory=dict)
    """Conditions by type, without times."""
    of_this_version: bool = False
    """A Node that another program has written meanwhile must not be patched."""
    again_in: timedelta | None = None
    """The time after which the contributor may want something else although nothing changed."""


@dataclass(frozen=True, slots=True)
class NodePatch:
    """A merge patch of the Node, or a strategic one of its status."""

    body: Mapping[str, object]
    of_status: bool = False


def patch_of(node: Node, desired: Desired, now: datetime) -> NodePatch | None:
    """Returns the patch of what differs; None if nothing does. `now` becomes the time of a changed condition."""
    if body := _own_fields(node, desired):
        return NodePatch(body)
    if status := _status_fields(node, desired, now):
        return NodePatch({"status": status}, of_status=True)
    return None


def is_met(node: Node, desired: Desired) -> bool:
    """Returns whether the Node has all of it."""
    return patch_of(node, desired, NO_TIME) is None


def differences(wanted: Mapping[str, str | None], present: Mapping[str, str]) -> dict[str, str | None]:
    """Returns the entries of `wanted` that `present` lacks or has with another value."""
    return {key: value for key, value in wanted.items() if present.get(key) != value}


def _own_fields(node: Node, desired: Desired) -> dict[str, object]:
    metadata: dict[str, object] = {}
    if annotations := differences(desired.annotations, node.metadata.annotations):
        metadata["annotations"] = annotations
    if labels := differences(desired.labels, node.metadata.labels):
        metadata["labels"] = labels
    taints = _taints(node.spec.taints, desired.taints)
    is_tainted_otherwise = len(taints) != len(node.spec.taints)
    # Taints are one list, and other programs write it too.
    if is_tainted_otherwise or (metadata and desired.of_this_version):
        metadata["resourceVersion"] = node.metadata.resource_version
    if is_tainted_otherwise:
        return {"metadata": metadata, "spec": {"taints": taints}}
    return {"metadata": metadata} if metadata else {}


def _taints(present: Sequence[Mapping[str, object]], wanted: Mapping[str, str | None]) -> list[Mapping[str, object]]:
    others = [taint for taint in present if taint.get("key") not in wanted]
    return [*others, *({"key": key, "effect": effect} for key, effect in wanted.items() if effect is not None)]


def _status_fields(node: Node, desired: Desired, now: datetime) -> dict[str, object]:
    status: dict[str, object] = {}
    different = {
        name: None if total is None else str(total)
        for name, total in desired.totals.items()
        if not _has_total(node, name, total)
    }
    if different:
        # Kubelet makes allocatable from capacity within seconds; no reader may see the one without the other.
        status |= {"capacity": different, "allocatable": different}
    present = {each.type: each for each in node.status.conditions}
    conditions = [
        _condition(type_, wanted, present.get(type_), now)
        for type_, wanted in desired.conditions.items()
        if present.get(type_) != wanted
    ]
    if conditions:
        status["conditions"] = conditions
    return status


def _has_total(node: Node, name: str, total: int | None) -> bool:
    if total is None:
        return name not in node.status.capacity and name not in node.status.allocatable
    try:
        return integer_quantity(node.status.capacity[name]) == total
    except (KeyError, QuantityError):
        return False


def _condition(type_: str, wanted: Condition | None, present: Condition | None, now: datetime) -> Mapping[str, str]:
    if wanted is None:
        return {"type": type_, "$patch": "delete"}
    changed = {"type": type_, "status": wanted.status, "reason": wanted.reason, "message": wanted.message}
    changed["lastHeartbeatTime"] = stamp(now)
    if present is None or present.status != wanted.status:
        changed["lastTransitionTime"] = stamp(now)
    return changed
