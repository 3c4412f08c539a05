"""Other GPU memory for running pods on a real API server: what `pods/resize` allows, and our own annotations."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from proto.annotations import keys
from proto.annotations.memory_resize import ResizeAnswer, ResizeState, answer_in, encode_answer
from tests.cluster.control_plane import ControlPlane
from tests.cluster.peers import Peer, real
from tests.cluster.scheduling import gpu_node, gpu_pod, running
from tests.cluster.shipped import MERGE_PATCH, STRATEGIC_MERGE_PATCH
from tests.polling import until

pytestmark = pytest.mark.cluster

SINCE = 33
"""From this minor release on `pods/resize` is on by default."""


@pytest.fixture
async def peer(plane: ControlPlane) -> AsyncIterator[Peer]:
    async with real(plane) as server:
        yield server


@pytest.mark.parametrize(("resource", "amount"), [(keys.RESOURCE_MEMORY, "2000"), (keys.RESOURCE_COUNT, "2")])
async def test_the_resize_subresource_changes_no_extended_resource(peer: Peer, resource: str, amount: str) -> None:
    if await peer.minor() < SINCE:
        pytest.skip(f"pods/resize begins with Kubernetes 1.{SINCE}")
    namespace = await peer.namespace(f"resize-{amount}")
    pod = gpu_pod("p", 1, gpumem=1000)
    pod["spec"]["schedulerName"] = "none"  # else later tests' kube-scheduler places it on their nodes
    await peer.create(f"/api/v1/namespaces/{namespace}/pods", pod)
    path = f"/api/v1/namespaces/{namespace}/pods/p/resize"
    changed = {"name": pod["spec"]["containers"][0]["name"], "resources": {"limits": {resource: amount}}}
    changed["resources"]["requests"] = {resource: amount}
    status, answer = await peer.send("PATCH", path, {"spec": {"containers": [changed]}}, STRATEGIC_MERGE_PATCH)
    assert (status, "only cpu and memory resources are mutable" in str(answer)) == (422, True), answer


async def test_a_pod_grows_and_shrinks_by_its_annotations(plane: ControlPlane, peer: Peer, tmp_path: Path) -> None:
    """The daemon's answers are written here."""
    async with running(plane, peer, tmp_path, gpu_node("a")) as cluster:
        await cluster.add(gpu_pod("p", 1, gpumem=1000))
        await cluster.bound("p")

        async def annotations() -> dict[str, str]:
            found: dict[str, str] = (await cluster.pod("p"))["metadata"]["annotations"]
            return found

        async def resized(mib: int, last: ResizeState) -> bool:
            now = await annotations()
            answer = answer_in(now)
            return f",{mib}," in now[keys.DEVICES_ALLOCATED] and answer is not None and answer.state is last

        for mib, last in ((3000, ResizeState.GROWING), (500, ResizeState.DONE)):
            ready = encode_answer(ResizeAnswer(wish=str(mib), state=ResizeState.READY))
            body: dict[str, Any] = {
                "metadata": {"annotations": {keys.MEMORY_WISH: str(mib), keys.MEMORY_RESIZE: ready}}
            }
            path = f"/api/v1/namespaces/{cluster.namespace}/pods/p"
            status, _ = await peer.send("PATCH", path, body, MERGE_PATCH)
            assert status == 200
            await until(lambda mib=mib, last=last: resized(mib, last))  # type: ignore[misc]
