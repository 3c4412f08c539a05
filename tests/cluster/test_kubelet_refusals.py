"""Kubelets that refuse each pod of a controller get one each, with the real kube-scheduler; kubelet is played."""

import asyncio
from pathlib import Path

import pytest

from proto.kubernetes.objects import TOPOLOGY_AFFINITY_ERROR
from tests.cluster.control_plane import ControlPlane
from tests.cluster.peers import real
from tests.cluster.scheduling import Cluster, gpu_node, gpu_pod, running

pytestmark = pytest.mark.cluster
REFUSED = {"status": {"phase": "Failed", "reason": TOPOLOGY_AFFINITY_ERROR, "message": "Resources cannot be allocated"}}
WATCHED_SECONDS = 20


async def refusals(on: Cluster) -> int:
    """The number of pods that failed while each was replaced at once."""
    made = 0
    async with asyncio.timeout(WATCHED_SECONDS):
        while True:
            made += 1
            name = f"replica-{made}"
            await on.add(gpu_pod(name, 1, gpumem=4000, cpu="2"))
            while not await on.node_of(name):
                condition = (await on.pod(name))["status"].get("conditions", [{}])[0]
                if "KubeletRefusedAlike" in condition.get("message", ""):
                    return made - 1
                await asyncio.sleep(0.1)
            path = f"/api/v1/namespaces/{on.namespace}/pods/{name}/status"
            status, answer = await on.peer.send("PATCH", path, REFUSED, "application/merge-patch+json")
            assert status == 200, answer


async def test_each_kubelet_refuses_one_pod_of_a_controller_and_the_next_waits(
    plane: ControlPlane, tmp_path: Path
) -> None:
    async with real(plane) as peer, running(plane, peer, tmp_path, gpu_node("a"), gpu_node("b")) as on:
        assert await refusals(on) == 2
        # Both are tried again after a pause.
        await on.bound("replica-3")
