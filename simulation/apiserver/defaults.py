"""Fills in defaults as the API server does when an object is written (pure).

Source: Kubernetes API reference, the defaults of each kind.
"""

from collections.abc import Callable, Mapping

from simulation.apiserver.errors import JsonObject, forbidden
from simulation.apiserver.kinds import (
    CRON_JOB,
    DAEMON_SET,
    DEPLOYMENT,
    JOB,
    NAMESPACE,
    POD,
    PRIORITY_CLASS,
    REPLICA_SET,
    SECRET,
    STATEFUL_SET,
    WEBHOOK,
    ServedKind,
)

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
    item = item | {field: item.get(field) or {} for field in ("spec", "status") if kind.has_status}
    return _new_job(item) if kind is JOB else item


def written_object(kind: ServedKind, item: JsonObject) -> JsonObject:
    """Returns the object with the fields that its author left out, in whatever way it was written."""
    complete = _COMPLETE.get(kind)
    return item if complete is None else complete(item)


def _new_pod(pod: JsonObject, priority_classes: Mapping[str, int]) -> JsonObject:
    spec = pod["spec"]
    phase = {"phase": "Pending"} | pod["status"]
    conditions = {"conditions": [_GATED]} if spec.get("schedulingGates") else {}
    qos_class = _qos_class([_container(one) for one in spec.get("containers") or []])
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


def _deployment(deployment: JsonObject) -> JsonObject:
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}
    defaults = {"replicas": 1, "strategy": rolling, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600}
    return deployment | {"spec": defaults | _named(deployment["spec"])}


def _replica_set(replica_set: JsonObject) -> JsonObject:
    return replica_set | {"spec": {"replicas": 1} | _named(replica_set["spec"])}


def _stateful_set(stateful_set: JsonObject) -> JsonObject:
    update = {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}
    defaults = {"replicas": 1, "podManagementPolicy": "OrderedReady", "updateStrategy": update}
    return stateful_set | {"spec": defaults | {"revisionHistoryLimit": 10} | _named(stateful_set["spec"])}


def _daemon_set(daemon_set: JsonObject) -> JsonObject:
    update = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}
    defaults = {"updateStrategy": update, "revisionHistoryLimit": 10}
    return daemon_set | {"spec": defaults | _named(daemon_set["spec"])}


def _cron_job(cron_job: JsonObject) -> JsonObject:
    limits = {"successfulJobsHistoryLimit": 3, "failedJobsHistoryLimit": 1}
    defaults = {"concurrencyPolicy": "Allow", "suspend": False} | limits
    return cron_job | {"spec": defaults | _named(cron_job["spec"])}


def _job(job: JsonObject) -> JsonObject:
    spec = _named(job["spec"])
    many = {"parallelism": 1} | ({} if spec.get("parallelism") is not None else {"completions": 1})
    defaults = many | {"backoffLimit": 6, "completionMode": "NonIndexed", "suspend": False}
    return job | {"spec": defaults | spec}


def _named(spec: JsonObject) -> JsonObject:
    return {key: value for key, value in spec.items() if value is not None}


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
    spec: JsonObject = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
    } | pod["spec"]
    for field in ("containers", "initContainers"):
        if field in spec:
            spec[field] = [_container(one) for one in spec[field]]
    return pod | {"spec": spec}


def _container(container: JsonObject) -> JsonObject:
    """A missing request takes the value of the limit."""
    resources = container["resources"]
    if limits := resources.get("limits"):
        resources = resources | {"requests": limits | (resources.get("requests") or {})}
    fixed = _is_fixed(str(container.get("image", "")))
    return {
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent" if fixed else "Always",
    } | (container | {"resources": resources})


def _is_fixed(image: str) -> bool:
    """Whether the name has a digest, or a tag other than latest."""
    _, colon, tag = image.rpartition("/")[2].partition(":")
    return "@" in image or (bool(colon) and tag != "latest")


def _qos_class(containers: list[JsonObject]) -> str:
    asked = [container["resources"] for container in containers]
    named = [{*(one.get("limits") or {}), *(one.get("requests") or {})} & {"cpu", "memory"} for one in asked]
    if not any(named):
        return "BestEffort"
    whole = all({"cpu", "memory"} <= {*(one.get("limits") or {})} for one in asked)
    return "Guaranteed" if whole and all(one["limits"] == one["requests"] for one in asked) else "Burstable"


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
    DEPLOYMENT: _deployment,
    REPLICA_SET: _replica_set,
    STATEFUL_SET: _stateful_set,
    DAEMON_SET: _daemon_set,
    CRON_JOB: _cron_job,
    JOB: _job,
    PRIORITY_CLASS: lambda one: {"preemptionPolicy": "PreemptLowerPriority"} | one,
}
