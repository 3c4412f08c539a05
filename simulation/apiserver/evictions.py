"""Decides which evictions PodDisruptionBudgets allow, and what an eviction writes before the pod is deleted (pure).

Source: Kubernetes documentation, "API-initiated Eviction" and "Disruptions".
"""

from collections.abc import Iterable

from simulation.apiserver.errors import ApiRefusal, JsonObject
from simulation.apiserver.patches import strategic
from simulation.apiserver.selectors import selects

_REFUSED = "Cannot evict pod as it would violate the pod's disruption budget."


def budget_of(pod: JsonObject, budgets: Iterable[JsonObject]) -> JsonObject | None:
    """Returns the budget of the pod's namespace that selects it. Raises ApiRefusal for more than one."""
    labels = pod["metadata"].get("labels") or {}
    found = [one for one in budgets if labels and selects((one.get("spec") or {}).get("selector"), labels)]
    if len(found) > 1:
        problem = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        raise ApiRefusal(500, "", problem)
    return found[0] if found else None


def costs(pod: JsonObject, budget: JsonObject) -> bool:
    """Returns whether the eviction is charged: it is not if the pod is not ready while enough others are."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    if any(one["type"] == "Ready" and one["status"] == "True" for one in conditions):
        return True
    status, policy = budget.get("status") or {}, (budget.get("spec") or {}).get("unhealthyPodEvictionPolicy")
    desired = int(status.get("desiredHealthy", 0))
    return policy != "AlwaysAllow" and not int(status.get("currentHealthy", 0)) >= desired > 0


def charged(budget: JsonObject, pod: JsonObject, at: str) -> JsonObject:
    """Returns the budget after the pod's eviction. Raises ApiRefusal where it leaves none."""
    name, status = budget["metadata"]["name"], budget.get("status") or {}
    allowed = int(status.get("disruptionsAllowed", 0))
    if allowed <= 0:
        needed = f"The disruption budget {name} needs {status.get('desiredHealthy', 0)} healthy pods and has "
        cause = {"reason": "DisruptionBudget", "message": f"{needed}{status.get('currentHealthy', 0)} currently"}
        raise ApiRefusal(429, "TooManyRequests", _REFUSED, {"causes": [cause]})
    disrupted = {**(status.get("disruptedPods") or {}), pod["metadata"]["name"]: at}
    return budget | {"status": status | {"disruptionsAllowed": allowed - 1, "disruptedPods": disrupted}}


def disrupted(pod: JsonObject, at: str) -> JsonObject:
    """Returns the pod with the condition that has the reason of its eviction."""
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
        "lastProbeTime": None,
        "lastTransitionTime": at,
    }
    return pod | {"status": strategic(pod.get("status") or {}, {"conditions": [condition]})}
