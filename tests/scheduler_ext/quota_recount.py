"""What counts under a ResourceQuota, counted anew from the JSON of the API server: nothing of the extender is used."""

from collections.abc import Iterable, Mapping
from typing import Any

from simulation.recount import NONE, Amount, allocated, holds, moments, peak

Json = Mapping[str, Any]


def counted(quota: Json, pods: Iterable[Json]) -> Amount:
    """Slots, MiB and cores that the quota's pods hold, as Kubernetes finds them."""
    sums = NONE
    for pod in pods:
        if holds(pod) and counts(quota, pod):
            for amount in peak(moments(pod, allocated(pod))).values():
                sums = (sums[0] + amount[0], sums[1] + amount[1], sums[2] + amount[2])
    return sums


def counts(quota: Json, pod: Json) -> bool:
    spec = quota["spec"]
    named = [{"scopeName": scope, "operator": "Exists"} for scope in spec.get("scopes", [])]
    asked = [*named, *spec.get("scopeSelector", {}).get("matchExpressions", [])]
    same = quota["metadata"]["namespace"] == pod["metadata"]["namespace"]
    return same and all(_in(each, pod["spec"]) for each in asked)


def _in(scope: Json, spec: Json) -> bool:
    name, values = spec.get("priorityClassName"), scope.get("values", [])
    by_name = {"In": name in values, "NotIn": name not in values, "Exists": bool(name), "DoesNotExist": not name}
    terminating, burstable = "activeDeadlineSeconds" in spec, asks_for_compute(spec)
    by_scope = {
        "PriorityClass": by_name[scope["operator"]],
        "Terminating": terminating,
        "NotTerminating": not terminating,
        "BestEffort": not burstable,
        "NotBestEffort": burstable,
        "CrossNamespacePodAffinity": "namespaces" in str(spec.get("affinity")),
    }
    return by_scope[scope["scopeName"]]


def asks_for_compute(spec: Json) -> bool:
    containers = [each.get("resources", {}) for each in (*spec.get("initContainers", []), *spec["containers"])]
    asking = [spec["resources"]] if "resources" in spec else containers
    amounts = [{**each.get("limits", {}), **each.get("requests", {})} for each in asking]
    return any(amount.get(name, "0") != "0" for amount in amounts for name in ("cpu", "memory"))
