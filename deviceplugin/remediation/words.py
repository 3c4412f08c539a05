"""The Node's marks for GPUs that stay unhealthy: an annotation, a condition, a taint. Pure."""

from datetime import datetime

from deviceplugin.node.desired import Desired
from deviceplugin.remediation.step import RemediationState, lasting, spoken
from deviceplugin.settings import RemediationSettings, TaintWhen
from proto.annotations.keys import NODE_CONDITION, NODE_TAINT, NODE_UNHEALTHY
from proto.annotations.unhealthy_since import encode_unhealthy, stamp
from proto.kubernetes.objects import Condition

_EFFECT = "NoSchedule"
_LONGEST_MESSAGE = 4096


def desired_marks(state: RemediationState, now: datetime, settings: RemediationSettings) -> Desired:
    """Returns the annotation and the taint."""
    ill = settings.remedy.reports and bool(state.ill)
    since = encode_unhealthy({key: each.since for key, each in state.ill.items()}) if ill else None
    effect = _EFFECT if _is_tainted(state, now, settings) else None
    return Desired(annotations={NODE_UNHEALTHY: since}, taints={NODE_TAINT: effect})


def desired_condition(state: RemediationState, now: datetime, settings: RemediationSettings) -> Desired:
    return Desired(conditions={NODE_CONDITION: _condition(state, now, settings) if settings.remedy.reports else None})


def _condition(state: RemediationState, now: datetime, settings: RemediationSettings) -> Condition:
    found = [state.ill[key] for key in lasting(state, now, settings)]
    if not found:
        message = f"no GPU has been unhealthy for {spoken(settings.after)}"
        return Condition(type=NODE_CONDITION, status="True", reason="GPUsHealthy", message=message)
    ordered = sorted(found, key=lambda each: each.name)
    message = "; ".join(f"{each.name} since {stamp(each.since)}: {each.problem}" for each in ordered)
    message = message[:_LONGEST_MESSAGE]
    return Condition(type=NODE_CONDITION, status="False", reason="GPUsUnhealthy", message=message)


def _is_tainted(state: RemediationState, now: datetime, settings: RemediationSettings) -> bool:
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
