"""The Node's annotations about its GPUs: registration, scores, how they are allocated and limited, the handshake."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from deviceplugin.node.desired import Desired, differences
from deviceplugin.settings import HamiScheduler
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
from proto.annotations.node_register import encode_register, encode_register_text, encode_scores
from proto.devices import Device, PairScores
from proto.kubernetes.objects import Node

HANDSHAKE_EVERY = timedelta(seconds=30)
"""HAMi's schedulers up to 2.7 drop a node that leaves their question unanswered for 60 s."""

_TEXT_SEPARATORS = str.maketrans(",:", "  ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The offer of a node to schedulers. `simulated`: the GPUs are not real."""

    devices: Sequence[Device]
    scores: PairScores
    mode: AllocationMode
    limits: NodeLimits
    simulated: bool = False


def registration(
    node: Node, offer: Offer, scheduler: HamiScheduler, *, answered_at: datetime | None = None, now: datetime
) -> Desired:
    """Returns the annotations of the offer. `answered_at`: when the handshake was answered last."""
    ordered = sorted(offer.devices, key=lambda device: (device.index, device.uuid))
    wanted = {
        NODE_REGISTER: _register(ordered, scheduler),
        NODE_SCORE: encode_scores(offer.scores, [device.uuid for device in ordered]),
        NODE_ALLOCATION: offer.mode.value,
        NODE_LIMITS: offer.limits.value,
        NODE_SIMULATED: "true" if offer.simulated else None,
    }
    due_at = _answer_due(node, scheduler, answered_at, now)
    is_changed = scheduler is not HamiScheduler.NONE and bool(differences(wanted, node.metadata.annotations))
    if is_changed or (due_at is not None and due_at <= now):
        return Desired(annotations={**wanted, NODE_HANDSHAKE: encode_reported(now)})
    return Desired(annotations=wanted, again_in=None if due_at is None else due_at - now)


def _register(devices: Sequence[Device], scheduler: HamiScheduler) -> str:
    if not scheduler.asks:
        return encode_register(devices)
    # The text has no way to escape what separates its fields.
    speakable = [replace(device, type=device.type.translate(_TEXT_SEPARATORS)) for device in devices]
    return encode_register_text(speakable, 7 if scheduler is HamiScheduler.V2_4 else 9)


def _answer_due(node: Node, scheduler: HamiScheduler, answered_at: datetime | None, now: datetime) -> datetime | None:
    """Returns when a question or a deletion is due to be answered, no more often than by HAMi; None for a report."""
    value = node.metadata.annotations.get(NODE_HANDSHAKE)
    awaits_answer = value is None or decode_handshake(value).state is not HandshakeState.REPORTED
    if not scheduler.asks or not awaits_answer:
        return None
    if answered_at is None or answered_at > now:  # the clock was set back
        return now
    return max(now, answered_at + HANDSHAKE_EVERY)
