"""What a pod's owner reads of a GPU that falls ill, in its status and its events; and how its pod gets off it."""

import re
from typing import Any

import pytest

from proto.annotations.keys import NODE_CONDITION
from simulation.nvml.machine_file import lost_gpu
from tests.deviceplugin.gpus import share
from tests.node.pods import SEVERAL, Pods, container, pod
from tests.node.real_node import NODE
from tests.polling import until

pytestmark = [pytest.mark.node, pytest.mark.needs_compiler]
TELLS_HEALTH = 36
"""The first minor release whose kubelet and API server tell the health of a container's devices unless asked not to."""
QUICK = ("--remediation-seconds", "1", "--read-seconds", "1")
SOON = ("--remediation", "evict-waiting")


async def health(pods: Pods, name: str) -> dict[str, str]:
    """Of the devices that kubelet has booked for the pod's only container, by id."""
    (status,) = (await pods.get(name))["status"].get("containerStatuses") or [{}]
    found: list[Any] = status.get("allocatedResourcesStatus") or []
    return {one["resourceID"]: one["health"] for resource in found for one in resource["resources"]}


async def shows(pods: Pods, name: str, *words: str) -> None:
    async def found() -> bool:
        return sorted((await health(pods, name)).values()) == sorted(words)

    await until(found)


async def test_the_status_of_a_pod_says_which_of_its_gpus_are_ill(pods: Pods) -> None:
    if await pods.peer.minor() < TELLS_HEALTH:
        pytest.skip("the feature gate ResourceHealthStatus is on since Kubernetes 1.36")
    node = pods.node
    await pods.serve("--allocation", "slots", *QUICK, *SEVERAL)
    await pods.add_bound(pod("two", container(gpus=2)), ((share(node.uuid(2)), share(node.uuid(3))),))
    await pods.started("two")
    await shows(pods, "two", "Healthy", "Healthy")
    node.gpus(lost_gpu(2))
    try:
        await shows(pods, "two", "Healthy", "Unhealthy")
        found = await health(pods, "two")
        assert [name.startswith(node.uuid(2)) for name, word in found.items() if word == "Unhealthy"] == [True]
    finally:
        node.gpus()
    await shows(pods, "two", "Healthy", "Healthy")


async def test_a_pod_that_waits_for_a_dead_gpu_says_why_and_is_evicted_while_kubelet_keeps_the_condition(
    pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = pods.node
    lease = {"metadata": {"name": "topogpu-remediation"}}
    await pods.peer.send("POST", f"/apis/coordination.k8s.io/v1/namespaces/{pods.namespace}/leases", lease)
    monkeypatch.setenv("POD_NAMESPACE", pods.namespace)
    await pods.serve("--allocation", "slots", *QUICK, *SOON)
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": True}
    waits, runs = pod("waits", container(ends=True)), pod("runs", container())
    waits["metadata"]["ownerReferences"] = [owner]
    await pods.add_bound(runs, ((share(node.uuid(2)),),))
    await pods.started("runs")
    node.gpus(lost_gpu(2))
    try:
        await pods.offered(70)
        await pods.add_bound(waits, ((share(node.uuid(2)),),))

        async def gone() -> bool:
            return "waits" not in await pods.all()

        await until(gone)
        messages = await pods.messages("waits")
        # A poll says "it does not answer: " before the same, a reading does not, and either may be first.
        why = f"EvictedFromUnhealthyGPU: evicted from the node, because GPU 2 ({node.uuid(2)}) is unhealthy: "
        [evicted] = [message for message in messages if message.startswith(why)]
        assert evicted.endswith("GPU is lost")
        assert any(message.startswith("Failed: Error: device plugin PreStartContainer") for message in messages)
        refused = re.compile(f"container main: {node.uuid(2)} is unhealthy: .*GPU is lost")
        assert any(refused.search(message) for message in messages)
        assert "runs" in await pods.all()

        async def condition(status: str) -> bool:
            _, found = await pods.peer.send("GET", f"/api/v1/nodes/{NODE}")
            told = {one["type"]: one["status"] for one in found["status"]["conditions"]}
            return (told.get("Ready"), told.get(NODE_CONDITION)) == ("True", status)

        assert await condition("False")
    finally:
        node.gpus()

    async def well() -> bool:
        return await condition("True")

    await until(well)
