"""Pods of several priorities on one rig, and whom kube-scheduler would evict for them."""

from typing import Any

from tests.builders import pod_json
from tests.polling import until
from tests.scheduler_ext.rig import Rig

WHOLE_GPU_MIB = 40960


def add_classes(rig: Rig, **values: int) -> None:
    for name, value in values.items():
        rig.server.create(
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": name},
                "value": value,
            }
        )


def add(rig: Rig, name: str, gpus: int = 1, *, priority: str = "", labels: dict[str, str] | None = None) -> Any:
    """A pod of whole GPUs."""
    pod = pod_json(name, gpus=gpus, memory_mib=WHOLE_GPU_MIB)
    pod["metadata"]["labels"] = labels or {}
    if priority:
        pod["spec"]["priorityClassName"] = priority
    return rig.server.create(pod)


async def placed(rig: Rig, pod: Any, node: str) -> None:
    """Bound and running."""
    answer = await rig.filter(pod, node)
    assert answer["NodeNames"] == [node], answer
    assert await rig.bind(pod, node) == ""
    running = {"status": {"phase": "Running"}}
    rig.server.patch("pods", pod["metadata"]["name"], running, namespace="default", subresource="status")
    await metric(rig, "topogpu_reservations", 0)


async def metric(rig: Rig, name: str, value: int) -> None:
    async def told() -> bool:
        async with rig.http.get(rig.metrics_url + "/metrics") as response:
            return f"{name} {value}.0" in (await response.text()).splitlines()

    await until(told)


async def rooms_kept(rig: Rig, number: int) -> None:
    await metric(rig, "topogpu_kept_rooms", number)


async def preempt(rig: Rig, pod: Any, node: str, *victims: Any) -> Any:
    """Kube-scheduler's question; the answer for the node, None without one."""
    metas = [{"UID": victim["metadata"]["uid"]} for victim in victims]
    args = {"Pod": pod, "NodeNameToMetaVictims": {node: {"Pods": metas, "NumPDBViolations": 0}}}
    return (await rig.post("/preempt", args))["NodeNameToMetaVictims"].get(node)


def nominate(rig: Rig, pod: Any, node: str) -> None:
    name, body = pod["metadata"]["name"], {"status": {"nominatedNodeName": node or None}}
    rig.server.patch("pods", name, body, namespace="default", subresource="status")


def budget(name: str, allowed: int, **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"matchLabels": labels}},
        "status": {"disruptionsAllowed": allowed},
    }
