"""A DeviceClass for the resource that our pods ask for, on a real API server and kube-scheduler."""

import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deviceplugin.node.desired import NO_TIME, Desired, patch_of
from deviceplugin.node.totals import node_totals
from deviceplugin.settings import TotalNames
from proto.annotations import keys
from proto.annotations.node_register import decode_register
from proto.kubernetes.objects import Node
from tests.cluster.control_plane import ControlPlane
from tests.cluster.peers import Peer, real
from tests.cluster.scheduling import gpu_node, gpu_pod, running
from tests.cluster.shipped import STRATEGIC_MERGE_PATCH

pytestmark = pytest.mark.cluster

CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
SINCE = 36
"""From this minor release on kube-scheduler looks for DeviceClasses by default."""


@pytest.fixture
async def peer(plane: ControlPlane) -> AsyncIterator[Peer]:
    async with real(plane) as server:
        if await server.minor() < SINCE:
            pytest.skip(f"DeviceClasses for extended resources begin with Kubernetes 1.{SINCE}")
        yield server


@pytest.fixture
async def device_class(peer: Peer) -> AsyncIterator[None]:
    """As NVIDIA's and HAMi's charts make one."""
    name = f"gpu-{uuid.uuid4().hex[:8]}.example.com"
    spec = {
        "selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}],
        "extendedResourceName": keys.RESOURCE_COUNT,
    }
    await peer.create(CLASSES, {"metadata": {"name": name}, "spec": spec})
    yield
    await peer.send("DELETE", f"{CLASSES}/{name}")


def total_patch(node: dict[str, Any]) -> Any:
    devices = decode_register(node["metadata"]["annotations"][keys.NODE_REGISTER])
    wanted = Desired(totals=node_totals(TotalNames(), devices, ()))
    patch = patch_of(msgspec.convert(node, Node), wanted, NO_TIME)
    return None if patch is None else patch.body


def with_totals(node: dict[str, Any]) -> dict[str, Any]:
    amounts = node["status"]["capacity"] | total_patch(node)["status"]["capacity"]
    return node | {"status": node["status"] | {"capacity": amounts, "allocatable": amounts}}


@pytest.mark.usefixtures("device_class")
async def test_without_totals_it_keeps_pods_off_their_nodes_and_totals_bring_them_back(
    plane: ControlPlane, peer: Peer, tmp_path: Path
) -> None:
    node = gpu_node("a")
    async with running(plane, peer, tmp_path, node) as cluster:
        await cluster.add(gpu_pod("whole", 1))
        await cluster.bound("whole")
        await cluster.add(gpu_pod("part", 1, gpumem=1000, gpucores=10, priority=1))
        assert "cannot fit resource" in (await cluster.refused("part"))["message"]
        status, _ = await peer.send("PATCH", "/api/v1/nodes/a/status", total_patch(node), STRATEGIC_MERGE_PATCH)
        assert status == 200
        await cluster.bound("part")


@pytest.mark.usefixtures("device_class")
async def test_totals_are_taken_away_as_they_are_written(peer: Peer) -> None:
    await peer.create("/api/v1/nodes", gpu_node("a"))
    path, kubelets = "/api/v1/nodes/a/status", {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    await peer.send("PATCH", path, {"status": {"conditions": [kubelets]}}, STRATEGIC_MERGE_PATCH)
    _, node = await peer.send("GET", path)
    before = node["status"]
    _, node = await peer.send("PATCH", path, total_patch(node), STRATEGIC_MERGE_PATCH)
    assert set(TotalNames()) <= node["status"]["capacity"].keys() & node["status"]["allocatable"].keys()
    gone = patch_of(msgspec.convert(node, Node), Desired(totals=dict.fromkeys(TotalNames())), NO_TIME)
    assert gone is not None
    _, node = await peer.send("PATCH", path, gone.body, STRATEGIC_MERGE_PATCH)
    assert node["status"] == before
    await peer.send("DELETE", "/api/v1/nodes/a")


@pytest.mark.usefixtures("device_class")
async def test_with_totals_pods_are_placed_whatever_they_name(plane: ControlPlane, peer: Peer, tmp_path: Path) -> None:
    percentage = gpu_pod("percentage", 2)
    percentage["spec"]["containers"][0]["resources"]["limits"][keys.RESOURCE_MEMORY_PERCENTAGE] = "50"
    async with running(plane, peer, tmp_path, with_totals(gpu_node("a"))) as cluster:
        await cluster.add(gpu_pod("part", 1, gpumem=1000, gpucores=10, priority=1))
        await cluster.add(percentage)
        await cluster.add(gpu_pod("all", 8, gpumem=10000))
        await cluster.bound("part", "percentage", "all")


@pytest.mark.parametrize("missing", list(TotalNames()))
@pytest.mark.usefixtures("device_class")
async def test_each_of_the_totals_is_needed(plane: ControlPlane, peer: Peer, tmp_path: Path, missing: str) -> None:
    node = with_totals(gpu_node("a"))
    del node["status"]["capacity"][missing]
    pod = gpu_pod("p", 1)
    pod["spec"]["containers"][0]["resources"]["limits"][missing] = "1"
    async with running(plane, peer, tmp_path, node) as cluster:
        await cluster.add(pod)
        assert "cannot fit resource" in (await cluster.refused("p"))["message"]
