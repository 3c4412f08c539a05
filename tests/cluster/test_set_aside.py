"""A node set aside on the real kube-scheduler: a large pod waits behind small ones that take each GPU that is free."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proto.annotations.keys import SET_ASIDE
from tests.cluster.control_plane import ControlPlane
from tests.cluster.peers import Peer, real
from tests.cluster.scheduling import Cluster, gpu_node, gpu_pod, running
from tests.polling import until

pytestmark = pytest.mark.cluster

AFTER = ("--set-aside-after-seconds", "1s")


@pytest.fixture
async def api_server(plane: ControlPlane) -> AsyncIterator[Peer]:
    async with real(plane) as peer:
        yield peer


async def _set_aside(cluster: Cluster, name: str) -> str:
    return str((await cluster.pod(name))["metadata"].get("annotations", {}).get(SET_ASIDE, ""))


async def test_a_large_pod_gets_a_node_from_a_stream_of_small_pods_which_then_goes_on(
    plane: ControlPlane, api_server: Peer, tmp_path: Path
) -> None:
    nodes = gpu_node("a"), gpu_node("b")
    async with running(plane, api_server, tmp_path, *nodes, options=AFTER) as cluster:
        first = [f"s{number}" for number in range(16)]
        for name in first:
            await cluster.add(gpu_pod(name, 1))
        await cluster.bound(*first)
        await cluster.add(gpu_pod("large", 8))

        async def has_a_node() -> bool:
            return '"node":"' in await _set_aside(cluster, "large")

        await until(has_a_node)
        chosen = "a" if '"node":"a"' in await _set_aside(cluster, "large") else "b"
        late = [f"late{number}" for number in range(8)]
        for name in late:
            await cluster.add(gpu_pod(name, 1))
            await cluster.refused(name)
        pods = await cluster.pods()
        leaving = [name for name in first if pods[name]["spec"]["nodeName"] == chosen]
        for name in leaving:
            await cluster.remove(name)
        await cluster.bound("large")
        assert await cluster.node_of("large") == chosen
        assert [name for name in late if await cluster.node_of(name)] == []
        await cluster.remove("large")
        await cluster.bound(*late)
        assert {await cluster.node_of(name) for name in late} == {chosen}
