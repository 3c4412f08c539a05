"""Checks GPUs that the Node reports as unhealthy, the pods on them, and the configured remediation."""

from collections.abc import Collection, Mapping
from datetime import datetime

from deviceplugin.doctor.finding import Finding, ok, problem, skipped, warning
from deviceplugin.remediation.holders import holder_of
from deviceplugin.settings import RemediationSettings
from program.words import enumerated
from proto.annotations.errors import AnnotationError
from proto.annotations.keys import NODE_REGISTER, NODE_UNHEALTHY
from proto.annotations.node_register import decode_register
from proto.annotations.unhealthy_since import decode_unhealthy, stamp
from proto.kubernetes.objects import Node, Pod

UNHEALTHY = "Unhealthy GPUs"
_REPAIR = "The Node's events have the reason (kubectl describe node); docs/health.md lists what brings a GPU back"


def judge_unhealthy(node: Node | None, pods: Collection[Pod], settings: RemediationSettings, resource: str) -> Finding:
    if node is None:
        return skipped(UNHEALTHY, "The Node could not be read.")
    try:
        ill = _ill(node.metadata.annotations)
    except AnnotationError as error:
        return problem(UNHEALTHY, f"{error}.", "Restart the daemon; it writes its annotations again.")
    if not ill:
        return ok(UNHEALTHY, "The Node has none.")
    holders = [holder for pod in pods if (holder := holder_of(pod, {}, resource)) is not None]
    having = sorted(holder.name for holder in holders if holder.gpus & ill.keys())
    named = enumerated(
        [name if at is None else f"{name} since {stamp(at)}" for name, at in sorted(ill.items())], most=16
    )
    if not having:
        return warning(UNHEALTHY, f"{named}; no pod has one of them.", f"{_REPAIR}.")
    todo = (
        "the daemon evicts these pods in time"
        if settings.remedy.evicts
        else "delete these pods to have them placed again, or have the daemon evict them (--remediation)"
    )
    return warning(UNHEALTHY, f"{named}; pods on them: {enumerated(having)}.", f"{_REPAIR}; {todo}.")


def _ill(annotations: Mapping[str, str]) -> Mapping[str, datetime | None]:
    """Returns since when, by UUID or place, if known. Raises AnnotationError."""
    registered = decode_register(annotations[NODE_REGISTER]) if NODE_REGISTER in annotations else ()
    since = decode_unhealthy(annotations[NODE_UNHEALTHY]) if NODE_UNHEALTHY in annotations else {}
    return {device.uuid: None for device in registered if not device.healthy} | dict(since)
