"""What this node must write about its GPUs, and whether it is already written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from deviceplugin.container.edits import Hook, NoHook
from deviceplugin.settings import HamiScheduler, UnenforcedShares
from proto.annotations.keys import (
    NODE_ALLOCATION,
    NODE_HANDSHAKE,
    NODE_LIMITS,
    NODE_REGISTER,
    NODE_SCORE,
    NODE_SIMULATED,
)
from proto.annotations.node_allocation import AllocationMode
from proto.annotations.node_handshake import HandshakeState, decode_handshake, encode_reported
from proto.annotations.node_limits import NodeLimits
from proto.annotations.node_register import encode_register, encode_register_text
from proto.annotations.node_score import encode_scores
from proto.devices import Device, PairScores
from proto.kubernetes.objects import Node

HANDSHAKE_EVERY = timedelta(seconds=30)
"""HAMi's schedulers up to 2.7 drop a node that leaves their question unanswered for 60 s."""

_TEXT_SEPARATORS = str.maketrans(",:", "  ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """`body` is the merge patch that is due, of what differs only; None when nothing is.

    `look_again` is when an answer to the scheduler's question comes due, None when it has asked nothing.
    """

    body: Mapping[str, object] | None = None
    look_again: datetime | None = None


def report(
    node: Node,
    devices: Sequence[Device],
    scores: PairScores,
    mode: AllocationMode,
    limits: NodeLimits,
    *,
    simulated: bool = False,
    scheduler: HamiScheduler = HamiScheduler.NONE,
    answered_at: datetime | None = None,
    now: datetime,
) -> Report:
    """Returns what must be written to bring the live Node up to date. `simulated`: whether the GPUs are not real.
    `answered_at`: when the handshake was answered last.
    """
    ordered = sorted(devices, key=lambda device: (device.index, device.uuid))
    wanted = {
        NODE_REGISTER: _register(ordered, scheduler),
        NODE_SCORE: encode_scores(scores, [device.uuid for device in ordered]),
        NODE_ALLOCATION: mode.value,
        NODE_LIMITS: limits.value,
    }
    written = node.metadata.annotations
    different: dict[str, str | None] = {key: value for key, value in wanted.items() if written.get(key) != value}
    marked = "true" if simulated else None
    if written.get(NODE_SIMULATED) != marked:
        different[NODE_SIMULATED] = marked
    due_at = _answer_due(node, scheduler, answered_at, now)
    if (due_at is not None and due_at <= now) or (different and scheduler is not HamiScheduler.NONE):
        different[NODE_HANDSHAKE] = encode_reported(now)
    if different:
        return Report(body={"metadata": {"annotations": different}})
    return Report(look_again=due_at)


def limits_of(found: Hook | NoHook, unenforced: UnenforcedShares) -> NodeLimits:
    """What the Node is to say."""
    allowed = unenforced is UnenforcedShares.ALLOW
    if isinstance(found, Hook):
        return NodeLimits.PARTLY_ENFORCED if allowed else NodeLimits.HAMI_CORE
    return NodeLimits.UNENFORCED if allowed else NodeLimits.NONE


def with_missing(before: Sequence[Device], now: Sequence[Device]) -> tuple[Device, ...]:
    """The GPUs found now, and those that were there before and vanished, unhealthy: pods may still hold them."""
    found = {device.uuid for device in now}
    lost = (replace(device, healthy=False) for device in before if device.uuid not in found)
    return tuple(sorted((*now, *lost), key=lambda device: (device.index, device.uuid)))


def _register(devices: Sequence[Device], scheduler: HamiScheduler) -> str:
    if not scheduler.asks:
        return encode_register(devices)
    # The text has no way to escape what separates its fields.
    speakable = [replace(device, type=device.type.translate(_TEXT_SEPARATORS)) for device in devices]
    return encode_register_text(speakable, 7 if scheduler is HamiScheduler.V2_4 else 9)


def _answer_due(node: Node, scheduler: HamiScheduler, answered_at: datetime | None, now: datetime) -> datetime | None:
    """A report that is up to date needs no other; a question or a deletion is answered, but not more often than HAMi
    does.
    """
    value = node.metadata.annotations.get(NODE_HANDSHAKE)
    asked = value is None or decode_handshake(value).state is not HandshakeState.REPORTED
    if not scheduler.asks or not asked:
        return None
    if answered_at is None or answered_at > now:  # the clock was set back
        return now
    return max(now, answered_at + HANDSHAKE_EVERY)
