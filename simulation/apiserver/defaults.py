"""What the API server fills in and refuses when an object is written (pure).

Source: Kubernetes API reference (defaults of Pod, Node, Namespace) and "Object Names and IDs".
"""

import re
from typing import Any

from simulation.apiserver.errors import JsonObject, invalid
from simulation.apiserver.kinds import NAMESPACE, NODE, POD, Kind

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_SYSTEM_PRIORITIES = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}
_NOT_READY_TOLERATIONS = [
    {"key": f"node.kubernetes.io/{problem}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for problem in ("not-ready", "unreachable")
]
_LONGEST_ANNOTATIONS_BYTES = 256 * 1024
_MUTABLE_POD_FIELDS = ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "schedulingGates")


def check_name(kind: Kind, name: str) -> None:
    """Refuses a name that is no DNS subdomain of at most 253 characters."""
    if len(name) > 253 or not _NAME.fullmatch(name):
        problem = "a lowercase RFC 1123 subdomain of at most 253 characters is required"
        raise invalid(kind.kind, name, f"metadata.name: Invalid value: {name!r}: {problem}")


def check_metadata(kind: Kind, metadata: JsonObject) -> None:
    """Refuses labels and annotations that are not texts by name, and annotations of more than 256 KiB."""
    name = str(metadata.get("name", ""))
    for field in ("labels", "annotations"):
        entries = metadata.get(field) or {}
        if not isinstance(entries, dict) or not all(isinstance(value, str) for value in entries.values()):
            raise invalid(kind.kind, name, f"metadata.{field}: Invalid value: expected texts by name")
    annotations: dict[str, str] = metadata.get("annotations") or {}
    if sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items()) > _LONGEST_ANNOTATIONS_BYTES:
        problem = f"metadata.annotations: Too long: may not be more than {_LONGEST_ANNOTATIONS_BYTES} bytes"
        raise invalid(kind.kind, name, problem)


def with_defaults(kind: Kind, item: JsonObject, priority_classes: dict[str, int]) -> JsonObject:
    """The new object with the fields that its author left out."""
    if kind is POD:
        return _new_pod(item, priority_classes)
    if kind is NODE:
        return item | {"spec": item.get("spec") or {}, "status": item.get("status") or {}}
    if kind is NAMESPACE:
        return item | {"spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}
    return item


def _new_pod(item: JsonObject, priority_classes: dict[str, int]) -> JsonObject:
    name = item["metadata"]["name"]
    spec: JsonObject = item.get("spec") or {}
    if not spec.get("containers"):
        raise invalid("Pod", name, "spec.containers: Required value")
    filled: JsonObject = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
        "tolerations": list(_NOT_READY_TOLERATIONS),
        "priority": _priority(name, spec, priority_classes),
    } | {key: value for key, value in spec.items() if value is not None}
    for field in ("containers", "initContainers"):
        if field in filled:
            filled[field] = [_new_container(name, f"{field}[{place}]", one) for place, one in enumerate(filled[field])]
    status = {"phase": "Pending"} | (item.get("status") or {})
    status.setdefault("qosClass", _qos_class(filled["containers"]))
    return item | {"spec": filled, "status": status}


def _priority(name: str, spec: JsonObject, priority_classes: dict[str, int]) -> int:
    if not (wanted := spec.get("priorityClassName")):
        return int(spec.get("priority") or 0)
    known = _SYSTEM_PRIORITIES | priority_classes
    if wanted not in known:
        raise invalid("Pod", name, f"spec.priorityClassName: no PriorityClass with name {wanted} was found")
    return known[wanted]


def _new_container(pod: str, where: str, container: Any) -> JsonObject:
    """The container with defaults; a missing request takes the value of the limit."""
    if not isinstance(container, dict) or not container.get("name"):
        raise invalid("Pod", pod, f"spec.{where}.name: Required value")
    resources: JsonObject = container.get("resources") or {}
    # The real server answers quantities as texts, however they were written.
    resources = {
        part: {key: str(amount) for key, amount in held.items()} if part in {"limits", "requests"} and held else held
        for part, held in resources.items()
    }
    if limits := resources.get("limits"):
        resources = resources | {"requests": dict(limits) | (resources.get("requests") or {})}
    return {
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    } | (container | {"resources": resources})


def _qos_class(containers: list[JsonObject]) -> str:
    asked = [container["resources"] for container in containers]
    named = [{*(one.get("limits") or {}), *(one.get("requests") or {})} & {"cpu", "memory"} for one in asked]
    if not any(named):
        return "BestEffort"
    whole = all({"cpu", "memory"} <= {*(one.get("limits") or {})} for one in asked)
    return "Guaranteed" if whole and all(one["limits"] == one["requests"] for one in asked) else "Burstable"


def check_pod_update(before: JsonObject, after: JsonObject) -> None:
    """Refuses changes of a pod's spec beyond what the API allows; the node is set by a Binding only."""
    if _fixed_part(before.get("spec") or {}) != _fixed_part(after.get("spec") or {}):
        allowed = "`spec.containers[*].image`, `spec.initContainers[*].image`, " + ", ".join(
            f"`spec.{field}`" for field in _MUTABLE_POD_FIELDS
        )
        problem = f"spec: Forbidden: pod updates may not change fields other than {allowed}"
        raise invalid("Pod", before["metadata"]["name"], problem)


def _fixed_part(spec: JsonObject) -> JsonObject:
    fixed = {key: value for key, value in spec.items() if key not in _MUTABLE_POD_FIELDS}
    for field in ("containers", "initContainers"):
        if field in fixed:
            fixed[field] = [{key: value for key, value in one.items() if key != "image"} for one in fixed[field]]
    return fixed
