"""The nodes and pods of the small world, as the API server shows them."""

import json
from functools import cache
from typing import NamedTuple

from proto.annotations import keys
from proto.decoding import converted
from proto.kubernetes.objects import Node, Pod
from simulation.recount import Amount, recount

NODES = ("a", "b")
GPUS = 2
MEMORY_MIB = 1000
NAMESPACE = "default"
ONE_OF_A_GPU: Amount = (1, MEMORY_MIB, 100)
"""The whole of a GPU: no two pods fit on one."""


class ModelPod(NamedTuple):
    """A pod as it is shown: its node, and its annotation with the GPUs. Both are empty while it waits."""

    node: str = ""
    devices: str = ""


WAITING = ModelPod()


def pod_name(pod: int) -> str:
    return f"p{pod}"


def uid_of(pod: int) -> str:
    return f"uid-{pod}"


@cache
def node_object(name: str) -> Node:
    devices = [
        {
            "id": f"GPU-{name}-{index}",
            "index": index,
            "count": 1,
            "devmem": MEMORY_MIB,
            "devcore": 100,
            "type": "NVIDIA A100-SXM4-40GB",
            "mode": "hami-core",
            "health": True,
        }
        for index in range(GPUS)
    ]
    annotations = {keys.NODE_REGISTER: json.dumps(devices), keys.NODE_ALLOCATION: "slots"}
    allocatable = {keys.RESOURCE_COUNT: str(GPUS)}
    return converted(
        {
            "metadata": {"name": name, "annotations": annotations},
            "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]},
        },
        Node,
    )


@cache
def pod_object(pod: int, gpus: int, seen: ModelPod) -> Pod:
    return converted(_pod_json(pod, gpus, seen), Pod)


@cache
def overbooked(pods: tuple[ModelPod | None, ...]) -> str:
    """Names the first GPU that is given out beyond its size, by a count that uses nothing of the extender."""
    bound = [_pod_json(pod, 1, seen) for pod, seen in enumerate(pods) if seen is not None and seen.node]
    for gpu, held in recount(bound).items():
        if any(amount > there for amount, there in zip(held, ONE_OF_A_GPU, strict=True)):
            return f"{gpu} is over-booked: {held}"
    return ""


@cache
def fits(pods: tuple[ModelPod | None, ...], gpus: int) -> bool:
    """Returns whether a pod of so many GPUs finds them free on one node, by the same count."""
    held = recount(_pod_json(pod, 1, seen) for pod, seen in enumerate(pods) if seen is not None and seen.node)
    return any(sum(f"GPU-{name}-{gpu}" not in held for gpu in range(GPUS)) >= gpus for name in NODES)


def _pod_json(pod: int, gpus: int, seen: ModelPod) -> dict[str, object]:
    limits = {keys.RESOURCE_COUNT: str(gpus), keys.RESOURCE_MEMORY: str(MEMORY_MIB)}
    return {
        "metadata": {
            "name": pod_name(pod),
            "namespace": NAMESPACE,
            "uid": uid_of(pod),
            "annotations": {keys.DEVICES_ALLOCATED: seen.devices} if seen.devices else {},
        },
        "spec": {"nodeName": seen.node, "containers": [{"name": "main", "resources": {"limits": limits}}]},
        "status": {},
    }
