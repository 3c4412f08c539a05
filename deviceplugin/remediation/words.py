"""What is written on the Node about GPUs that stay unhealthy: an annotation, a condition, a taint; and whether it is
there. Pure.
"""

from collections.abc import Mapping
from datetime import datetime

from deviceplugin.remediation.step import State, lasting, spoken
from deviceplugin.report import Report
from deviceplugin.settings import RemediationSettings, TaintWhen
from proto.annotations.keys import NODE_CONDITION, NODE_TAINT, NODE_UNHEALTHY
from proto.annotations.unhealthy_since import encode_unhealthy, stamp
from proto.kubernetes.objects import Condition, Node

_EFFECT = "NoSchedule"
_LONGEST_MESSAGE = 4096


def marks_report(node: Node, state: State, now: datetime, settings: RemediationSettings) -> Report:
    """The merge patch of the Node, of annotation and taint. Where the taints change it holds for this version of the
    Node alone: they are one list, and others write it too.
    """
    metadata: dict[str, object] = {}
    ill = settings.remedy.reports and bool(state.ill)
    wanted = encode_unhealthy({key: each.since for key, each in state.ill.items()}) if ill else None
    if node.metadata.annotations.get(NODE_UNHEALTHY) != wanted:
        metadata["annotations"] = {NODE_UNHEALTHY: wanted}
    body: dict[str, object] = {"metadata": metadata}
    others = [taint for taint in node.spec.taints if not is_ours(taint)]
    taints = [*others, *([{"key": NODE_TAINT, "effect": _EFFECT}] if _is_tainted(state, now, settings) else [])]
    if len(taints) != len(node.spec.taints):
        metadata["resourceVersion"] = node.metadata.resource_version
        body["spec"] = {"taints": taints}
    return Report(body=body) if metadata else Report()


def condition_report(node: Node, state: State, now: datetime, settings: RemediationSettings) -> Report:
    """The strategic merge patch of the Node's status: it changes this one condition."""
    told = next((each for each in node.status.conditions if each.type == NODE_CONDITION), None)
    if not settings.remedy.reports:
        return Report(body=without_condition()) if told else Report()
    status, reason, message = _condition(state, now, settings)
    if told == Condition(type=NODE_CONDITION, status=status, reason=reason, message=message):
        return Report()
    changed = {"type": NODE_CONDITION, "status": status, "reason": reason, "message": message}
    changed["lastHeartbeatTime"] = stamp(now)
    if told is None or told.status != status:
        changed["lastTransitionTime"] = stamp(now)
    return Report(body={"status": {"conditions": [changed]}})


def without_condition() -> Mapping[str, object]:
    """The strategic merge patch of the Node's status that takes our condition away."""
    return {"status": {"conditions": [{"type": NODE_CONDITION, "$patch": "delete"}]}}


def is_ours(taint: Mapping[str, object]) -> bool:
    return taint.get("key") == NODE_TAINT


def _condition(state: State, now: datetime, settings: RemediationSettings) -> tuple[str, str, str]:
    found = [state.ill[key] for key in lasting(state, now, settings)]
    if not found:
        return "True", "GPUsHealthy", f"no GPU has been unhealthy for {spoken(settings.after)}"
    ordered = sorted(found, key=lambda each: each.name)
    message = "; ".join(f"{each.name} since {stamp(each.since)}: {each.problem}" for each in ordered)
    return "False", "GPUsUnhealthy", message[:_LONGEST_MESSAGE]


def _is_tainted(state: State, now: datetime, settings: RemediationSettings) -> bool:
    if not settings.remedy.reports:
        return False
    found = len(lasting(state, now, settings))
    match settings.taint:
        case TaintWhen.NEVER:
            return False
        case TaintWhen.ANY:
            return found > 0
        case TaintWhen.ALL:
            return 0 < found >= state.gpus
