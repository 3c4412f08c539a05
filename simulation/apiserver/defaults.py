"""Fills in defaults as the API server does when an object is written (pure).

Source: Kubernetes API reference, the defaults of each kind.
"""

from collections.abc import Callable, Mapping
from functools import partial

from simulation.apiserver.errors import JsonObject, forbidden
from simulation.apiserver.kinds import (
    CLAIM,
    CRON_JOB,
    JOB,
    NAMESPACE,
    POD,
    PRIORITY_CLASS,
    SECRET,
    WEBHOOK,
    WORKLOADS,
    ServedKind,
)
from simulation.apiserver.workloads import completed_spec

_NOT_READY_TOLERATIONS = [
    {"key": f"node.kubernetes.io/{problem}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for problem in ("not-ready", "unreachable")
]
_GATED = {
    "type": "PodScheduled",
    "status": "False",
    "lastProbeTime": None,
    "lastTransitionTime": None,
    "reason": "SchedulingGated",
    "message": "Scheduling is blocked due to non-empty scheduling gates",
}


def new_object(kind: ServedKind, item: JsonObject, priority_classes: Mapping[str, int]) -> JsonObject:
    """Returns the new object with what only its creation decides. Raises ApiRefusal."""
    if kind is POD:
        return _new_pod(item, priority_classes)
    if kind is NAMESPACE:
        label = {"kubernetes.io/metadata.name": item["metadata"]["name"]}
        metadata = item["metadata"] | {"labels": (item["metadata"].get("labels") or {}) | label}
        return item | {"metadata": metadata, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}
    if kind is CLAIM:
        return _bound(item)
    item = item | {field: item.get(field) or {} for field in ("spec", "status") if kind.has_status}
    return _new_job(item) if kind is JOB else item


def written_object(kind: ServedKind, item: JsonObject) -> JsonObject:
    """Returns the object with the fields that its author left out, in whatever way it was written."""
    complete = _COMPLETE.get(kind)
    return item if complete is None else complete(item)


def _bound(claim: JsonObject) -> JsonObject:
    """Returns the claim with a volume. Containers run nothing, so none needs to exist."""
    spec = {"volumeName": f"pvc-{claim['metadata']['uid']}", "volumeMode": "Filesystem"} | (claim.get("spec") or {})
    capacity = (spec.get("resources") or {}).get("requests") or {}
    status = {"phase": "Bound", "accessModes": spec.get("accessModes") or [], "capacity": capacity}
    return claim | {"spec": spec, "status": status}


def _new_pod(pod: JsonObject, priority_classes: Mapping[str, int]) -> JsonObject:
    spec = pod["spec"]
    phase = {"phase": "Pending"} | pod["status"]
    conditions = {"conditions": [_GATED]} if spec.get("schedulingGates") else {}
    qos_class = _qos_class([_requested(one) for one in spec.get("containers") or []])
    spec = {"tolerations": list(_NOT_READY_TOLERATIONS)} | spec | {"priority": _priority(pod, priority_classes)}
    return pod | {"spec": spec, "status": conditions | {"qosClass": qos_class} | phase}


def _new_job(job: JsonObject) -> JsonObject:
    """Returns the Job with the labels by which its pods are found."""
    metadata, spec = job["metadata"], job["spec"]
    own = {"batch.kubernetes.io/controller-uid": metadata["uid"]}
    named = {"batch.kubernetes.io/job-name": metadata["name"], "job-name": metadata["name"]}
    template = spec.get("template") or {}
    labelled = template.get("metadata") or {}
    labels = (labelled.get("labels") or {}) | own | named
    template = template | {"metadata": labelled | {"labels": labels}}
    spec = {"selector": {"matchLabels": own}} | spec | {"template": template}
    return job | {"spec": spec}


def _workload(kind: ServedKind, workload: JsonObject) -> JsonObject:
    spec = completed_spec(kind, workload["spec"])
    if kind is CRON_JOB:
        job = spec["jobTemplate"]
        spec["jobTemplate"] = job | {"spec": _templated(completed_spec(JOB, job["spec"]))}
        return workload | {"spec": spec}
    return workload | {"spec": _templated(spec)}


def _templated(spec: JsonObject) -> JsonObject:
    template = spec["template"]
    return spec | {"template": template | {"spec": _pod_spec(template["spec"])}}


def _priority(pod: JsonObject, priority_classes: Mapping[str, int]) -> int:
    name, spec = pod["metadata"]["name"], pod["spec"]
    wanted = spec.get("priorityClassName")
    if wanted and wanted not in priority_classes:
        raise forbidden(POD, name, f"no PriorityClass with name {wanted} was found")
    value = priority_classes[wanted] if wanted else 0
    if spec.get("priority", value) != value:
        problem = f"the integer value of priority ({spec['priority']}) must not be provided in pod spec"
        raise forbidden(POD, name, f"{problem}; priority admission controller computed {value} from its class")
    return value


def _pod(pod: JsonObject) -> JsonObject:
    spec: JsonObject = {"enableServiceLinks": True, "preemptionPolicy": "PreemptLowerPriority"} | _pod_spec(pod["spec"])
    for field in ("containers", "initContainers"):
        if field in spec:
            spec[field] = [_requested(one) for one in spec[field]]
    return pod | {"spec": spec}


def _pod_spec(spec: JsonObject) -> JsonObject:
    """Returns a spec of pods, or of a template of pods."""
    completed: JsonObject = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "securityContext": {},
    } | spec
    for field in ("containers", "initContainers"):
        if field in spec:
            completed[field] = [_container(one) for one in spec[field]]
    return completed


def _requested(container: JsonObject) -> JsonObject:
    """A missing request takes the value of the limit."""
    resources = container["resources"]
    limits = resources.get("limits")
    completed = {"requests": limits | (resources.get("requests") or {})} if limits else {}
    return container | {"resources": resources | completed}


def _container(container: JsonObject) -> JsonObject:
    fixed = _is_fixed(str(container.get("image", "")))
    return {
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent" if fixed else "Always",
    } | container


def _is_fixed(image: str) -> bool:
    """Returns whether the name has a digest, or a tag other than latest."""
    _, colon, tag = image.rpartition("/")[2].partition(":")
    return "@" in image or (bool(colon) and tag != "latest")


def _qos_class(containers: list[JsonObject]) -> str:
    resources = [container["resources"] for container in containers]
    named = [{*(one.get("limits") or {}), *(one.get("requests") or {})} & {"cpu", "memory"} for one in resources]
    if not any(named):
        return "BestEffort"
    whole = all({"cpu", "memory"} <= {*(one.get("limits") or {})} for one in resources)
    return "Guaranteed" if whole and all(one["limits"] == one["requests"] for one in resources) else "Burstable"


def _webhooks(configuration: JsonObject) -> JsonObject:
    defaults: JsonObject = {
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "reinvocationPolicy": "Never",
        "timeoutSeconds": 10,
        "namespaceSelector": {},
        "objectSelector": {},
    }
    filled = [defaults | webhook for webhook in configuration.get("webhooks") or []]
    for webhook in filled:
        if webhook.get("rules"):
            webhook["rules"] = [{"scope": "*"} | rule for rule in webhook["rules"]]
    return configuration | ({"webhooks": filled} if filled else {})


_COMPLETE: Mapping[ServedKind, Callable[[JsonObject], JsonObject]] = {
    POD: _pod,
    SECRET: lambda secret: {"type": "Opaque"} | secret,
    WEBHOOK: _webhooks,
    **{kind: partial(_workload, kind) for kind in WORKLOADS},
    PRIORITY_CLASS: lambda one: {"preemptionPolicy": "PreemptLowerPriority"} | one,
}
