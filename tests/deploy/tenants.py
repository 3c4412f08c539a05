"""What the users of a cluster run there: pods of a Deployment and of a Job, and what they say they were given."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from proto import __version__
from proto.annotations import keys
from proto.annotations.pod_devices import decode_pod_devices
from tests.deploy.cluster import Cluster, CommandFailed

JsonObject = dict[str, Any]
IMAGE = f"registry.example.com/topogpu:{__version__}"
"""Any image that has a shell."""
_SAYS = 'echo "GPUS=$NVIDIA_VISIBLE_DEVICES"; echo FILES=$(ls -d /dev/nvidia[0-9]*); '


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What one pod found, and what was decided for it."""

    uuids: frozenset[str]
    files: int
    decided: frozenset[str]


def deployment(name: str, gpus: int, replicas: int) -> JsonObject:
    spec = {
        "replicas": replicas,
        "selector": {"matchLabels": {"app": name}},
        "template": _template(name, gpus, "sleep"),
    }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def job(name: str, gpus: int, completions: int) -> JsonObject:
    template = _template(name, gpus, "")
    template["spec"]["restartPolicy"] = "Never"
    spec = {"completions": completions, "parallelism": completions, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def pod(name: str, gpus: int) -> JsonObject:
    """One that sleeps."""
    template = _template(name, gpus, "sleep")
    metadata = {"name": name, **template["metadata"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def _template(name: str, gpus: int, then: str) -> JsonObject:
    waits = "trap 'exit 0' TERM; while :; do sleep 0.2; done" if then == "sleep" else "true"
    container = {
        "name": "main",
        "image": IMAGE,
        "command": ["sh", "-c", _SAYS + waits],
        "resources": {"limits": {"nvidia.com/gpu": gpus}},
    }
    return {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}}


def given(cluster: Cluster, name: str) -> list[Given]:
    """Of each pod of a Deployment or Job, whose containers have started."""
    return [_of_pod(cluster, pod) for pod in cluster.items(f"pods -l app={name}") if _counts(pod)]


def _counts(pod: JsonObject) -> bool:
    return "deletionTimestamp" not in pod["metadata"]


def _of_pod(cluster: Cluster, pod: JsonObject) -> Given:
    lines = cluster.kubectl(f"logs {pod['metadata']['name']}").splitlines()
    said = {name: value for name, _, value in (line.partition("=") for line in lines)}
    key = keys.DEVICES_ALLOCATED
    shares = decode_pod_devices(key, pod["metadata"]["annotations"][key])
    decided = frozenset(share.uuid for container in shares for share in container)
    return Given(uuids=frozenset(said["GPUS"].split(",")), files=len(said["FILES"].split()), decided=decided)


@dataclass
class Stream:
    """Pods that a user creates one after the other."""

    created: int = 0
    ended: int = 0
    failed: list[str] = field(default_factory=list)
    """Names and reasons."""


@contextmanager
def stream(cluster: Cluster, name: str, between_seconds: float = 1.0, restart: str = "Never") -> Iterator[Stream]:
    """One pod with a GPU after the other while the block runs. Pods are alone in the world: none is made again.

    `restart`: what becomes of a container that fails; a pod that kubelet refuses has failed for good in any case.
    """
    found, stop = Stream(), threading.Event()

    def create() -> None:
        while not stop.wait(between_seconds):
            found.created += 1
            made = pod(f"{name}-{found.created}", gpus=1)
            made["metadata"]["labels"] = {"app": name}
            made["spec"]["restartPolicy"] = restart
            made["spec"]["containers"][0]["command"][-1] = "true"
            try:
                cluster.apply(made)
            except CommandFailed as refused:
                found.failed.append(str(refused))

    thread = threading.Thread(target=create)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()
    cluster.until(lambda: all(map(_has_ended, cluster.items(f"pods -l app={name}"))), "the pods of the stream end")
    for one in cluster.items(f"pods -l app={name}"):
        status = one["status"]
        found.ended += 1
        if status["phase"] != "Succeeded":
            found.failed.append(f"{one['metadata']['name']}: {status.get('reason')} {status.get('message')}")
    cluster.kubectl(f"delete pods -l app={name}")


def _has_ended(one: JsonObject) -> bool:
    return one["status"]["phase"] in ("Succeeded", "Failed")
