"""Bodies of status patches and events that a kubelet writes about its node and its pods."""

from collections.abc import Collection, Mapping
from datetime import datetime
from types import MappingProxyType

from proto.kubernetes.objects import POD_SCHEDULED, Container, Pod

Body = dict[str, object]
_ORDINARY_RESOURCES = {"cpu": "64", "memory": "512Gi", "pods": "250", "ephemeral-storage": "1Ti"}


def node_object(name: str, labels: Mapping[str, str], runtime_version: str, at: datetime) -> Body:
    """Returns a Ready node without any device yet."""
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "kubelet is posting ready status",
        "lastHeartbeatTime": rfc3339(at),
        "lastTransitionTime": rfc3339(at),
    }
    status = {
        "capacity": dict(_ORDINARY_RESOURCES),
        "allocatable": dict(_ORDINARY_RESOURCES),
        "conditions": [ready],
        "nodeInfo": {"kubeletVersion": "v1.36.0-simulated", "containerRuntimeVersion": runtime_version},
    }
    metadata: Body = {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}, "status": status}


def device_capacity(devices: Mapping[str, tuple[int, int]]) -> Body:
    """Returns the patch that follows a plugin's ListAndWatch: all ids are capacity, the healthy ones allocatable."""
    capacity = {resource: str(total) for resource, (total, _) in devices.items()}
    allocatable = {resource: str(healthy) for resource, (_, healthy) in devices.items()}
    return {"status": {"capacity": capacity, "allocatable": allocatable}}


def refused(message: str, reason: str) -> Body:
    return {"phase": "Failed", "reason": reason, "message": f"Pod was rejected: {message}"}


def waiting(pod: Pod, container: str, started: Collection[str], at: datetime, *, reason: str, message: str) -> Body:
    """One container could not be created yet."""
    problem: Body = {"reason": reason, "message": message}
    return _status(pod, "Pending", started, at, {container: problem})


def running(pod: Pod, at: datetime, restarts: int = 0, ids: Mapping[str, str] = MappingProxyType({})) -> Body:
    """`ids` are those of containers by name, where they have any."""
    names = {container.name for container in pod.all_containers}
    body = _status(pod, "Running", names, at, {})
    inits = [_init(c, True, {}, at) | _identity(c.name, ids) for c in pod.spec.init_containers]
    apps = [_app(c, True, {}, at, restarts) | _identity(c.name, ids) for c in pod.spec.containers]
    return body | {"initContainerStatuses": inits, "containerStatuses": apps}


def _identity(container: str, ids: Mapping[str, str]) -> Body:
    return {"containerID": f"simulated://{ids[container]}"} if ids.get(container) else {}


def crashed(pod: Pod, at: datetime, restarts: int) -> Body:
    """Returns the status of a pod whose containers have ended and wait for their next start."""
    message = "back-off restarting failed container"
    problems: dict[str, Body] = {
        c.name: {"reason": "CrashLoopBackOff", "message": message} for c in pod.spec.containers
    }
    body = _status(pod, "Running", {c.name for c in pod.spec.init_containers}, at, problems)
    unready = [_condition(kind, "False", at) for kind in ("ContainersReady", "Ready")]
    return body | {
        "conditions": [_condition(POD_SCHEDULED, "True", at), _condition("Initialized", "True", at), *unready],
        "containerStatuses": [_app(c, False, problems, at, restarts) for c in pod.spec.containers],
    }


def ended(pod: Pod, at: datetime, codes: Mapping[str, int] | None = None, since: datetime | None = None) -> Body:
    """Returns what kubelet writes of a pod whose containers have all ended, with their exit codes: by itself, or before
    a deleted pod goes.
    """
    codes = codes or {}
    containers = [
        _container(container, False, {"terminated": _over(codes.get(container.name, 0), since or at, at)})
        for container in pod.spec.containers
    ]
    phase = "Failed" if any(codes.values()) else "Succeeded"
    reason = "PodFailed" if any(codes.values()) else "PodCompleted"
    unready = [_condition(kind, "False", at) | {"reason": reason} for kind in ("ContainersReady", "Ready")]
    conditions = [_condition(POD_SCHEDULED, "True", at), _condition("Initialized", "True", at), *unready]
    return {"phase": phase, "conditions": conditions, "containerStatuses": containers}


def _over(code: int, since: datetime, at: datetime) -> Body:
    reason = "Error" if code else "Completed"
    return {"exitCode": code, "reason": reason, "startedAt": rfc3339(since), "finishedAt": rfc3339(at)}


def event(pod: Pod, node_name: str, *, serial: int, reason: str, message: str, at: datetime) -> Body:
    """Returns a warning about the pod."""
    metadata = {"name": f"{pod.metadata.name}.{pod.metadata.uid[:8]}.{serial}", "namespace": pod.metadata.namespace}
    about = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": pod.metadata.name,
        "namespace": pod.metadata.namespace,
        "uid": pod.metadata.uid,
    }
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": metadata,
        "involvedObject": about,
        "type": "Warning",
        "reason": reason,
        "message": message,
        "count": 1,
        "source": {"component": "kubelet", "host": node_name},
        "firstTimestamp": rfc3339(at),
        "lastTimestamp": rfc3339(at),
    }


def rfc3339(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _status(pod: Pod, phase: str, started: Collection[str], at: datetime, problems: Mapping[str, Body]) -> Body:
    ready = phase == "Running"
    kept = [_condition(c.type, c.status, at) for c in pod.status.conditions if c.type == POD_SCHEDULED]
    conditions = [_condition(kind, str(ready), at) for kind in ("Initialized", "ContainersReady", "Ready")]
    return {
        "phase": phase,
        "startTime": rfc3339(at),
        "conditions": kept + conditions,
        "initContainerStatuses": [_init(c, c.name in started, problems, at) for c in pod.spec.init_containers],
        "containerStatuses": [_app(c, c.name in started, problems, at) for c in pod.spec.containers],
    }


def _condition(kind: str, status: str, at: datetime) -> Body:
    return {"type": kind, "status": status, "lastTransitionTime": rfc3339(at)}


def _init(container: Container, started: bool, problems: Mapping[str, Body], at: datetime) -> Body:
    return _container(
        container, started, {"terminated": _over(0, at, at)} if started else _not_yet(container, problems)
    )


def _app(container: Container, started: bool, problems: Mapping[str, Body], at: datetime, restarts: int = 0) -> Body:
    state: Body = {"running": {"startedAt": rfc3339(at)}} if started else _not_yet(container, problems)
    return _container(container, started, state) | {"restartCount": restarts}


def _not_yet(container: Container, problems: Mapping[str, Body]) -> Body:
    return {"waiting": problems.get(container.name, {"reason": "PodInitializing"})}


def _container(container: Container, started: bool, state: Body) -> Body:
    identity = f"simulated://{container.name}" if started else ""
    return {
        "name": container.name,
        "image": container.image,
        "imageID": "",
        "ready": started,
        "restartCount": 0,
        "containerID": identity,
        "state": state,
    }
