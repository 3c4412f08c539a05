"""What this node has to say about its GPUs, and whether it is already said."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

from proto.annotations.keys import NODE_ALLOCATION, NODE_REGISTER, NODE_SCORE
from proto.annotations.node_register import encode_register
from proto.annotations.node_score import encode_scores
from proto.devices import Device, PairScores
from proto.kubernetes.objects import Node


class AllocationMode(StrEnum):
    """How `Allocate` learns which pod it serves. Nodes that are `immediate` need the node lock."""

    SLOTS = "slots"
    IMMEDIATE = "immediate"


def report(
    node: Node, devices: Sequence[Device], scores: PairScores, mode: AllocationMode
) -> Mapping[str, object] | None:
    """The merge patch that makes the live node say it, only of what differs; None when nothing does."""
    ordered = sorted(devices, key=lambda device: (device.index, device.uuid))
    wanted = {
        NODE_REGISTER: encode_register(ordered),
        NODE_SCORE: encode_scores(scores, [device.uuid for device in ordered]),
        NODE_ALLOCATION: mode.value,
    }
    different = {key: value for key, value in wanted.items() if node.metadata.annotations.get(key) != value}
    return {"metadata": {"annotations": different}} if different else None


def with_missing(before: Sequence[Device], now: Sequence[Device]) -> tuple[Device, ...]:
    """The GPUs found now, and those that were there before and vanished, unhealthy: pods may still hold them."""
    found = {device.uuid for device in now}
    lost = (replace(device, healthy=False) for device in before if device.uuid not in found)
    return tuple(sorted((*now, *lost), key=lambda device: (device.index, device.uuid)))
