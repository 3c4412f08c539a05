"""Bodies of status patches and events that a kubelet writes about its node and its pods."""

from collections.abc import Collection, Mapping
from datetime import datetime

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


def running(pod: Pod, at: datetime) -> Body:
    names = {container.name for container in pod.all_containers}
    return _status(pod, "Running", names, at, {})


def ended(pod: Pod, at: datetime) -> Body:
    """Returns what kubelet writes of a deleted pod before it goes: all of its containers have ended."""
    over: Body = {"exitCode": 0, "reason": "Completed", "startedAt": rfc3339(at), "finishedAt": rfc3339(at)}
    containers = [_container(container, False, {"terminated": over}) for container in pod.spec.containers]
    return {"phase": "Succeeded", "containerStatuses": containers}


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
    ended: Body = {"exitCode": 0, "reason": "Completed", "startedAt": rfc3339(at), "finishedAt": rfc3339(at)}
    return _container(container, started, {"terminated": ended} if started else _not_yet(container, problems))


def _app(container: Container, started: bool, problems: Mapping[str, Body], at: datetime) -> Body:
    state: Body = {"running": {"startedAt": rfc3339(at)}} if started else _not_yet(container, problems)
    return _container(container, started, state)


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
