"""Groups of pods, which the real kube-scheduler schedules as a whole (GenericWorkload, not on by default)."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import ControlPlane
from tests.cluster.groups import add_group, add_pod_group, plane_with_groups
from tests.cluster.peers import Peer, real
from tests.cluster.scheduling import gpu_node, gpu_pod, running
from tests.polling import until

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def plane(kubernetes: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    folder = tmp_path_factory.mktemp("control-plane-with-groups")
    with plane_with_groups(kubernetes, folder, "GenericWorkload=true") as running:
        yield running


@pytest.fixture
async def api_server(plane: ControlPlane) -> AsyncIterator[Peer]:
    async with real(plane) as peer:
        yield peer


async def test_a_group_that_cannot_fit_holds_nothing_and_is_bound_once_it_fits(
    plane: ControlPlane, api_server: Peer, tmp_path: Path
) -> None:
    async with running(plane, api_server, tmp_path, *(gpu_node(f"n{i}") for i in range(2))) as cluster:
        await add_group(cluster, "gang", members=3, gpus=8)
        await cluster.refused("gang2")
        others = [f"other{number}" for number in range(4)]
        for name in others:
            await cluster.add(gpu_pod(name, 4, gpucores=100))
            await cluster.bound(name)
        gang = [f"gang{number}" for number in range(3)]
        assert not any([await cluster.node_of(name) for name in gang])
        await cluster.peer.create("/api/v1/nodes", gpu_node("n2"))
        await asyncio.gather(*(cluster.remove(name) for name in others))
        await cluster.bound(*gang)
        assert {await cluster.node_of(name) for name in gang} == {"n0", "n1", "n2"}


async def test_a_member_that_another_plugin_refuses_frees_the_group(
    plane: ControlPlane, api_server: Peer, tmp_path: Path
) -> None:
    """The extender is not asked about that member; the pods' status says what became of the group."""
    async with running(plane, api_server, tmp_path, *(gpu_node(f"n{i}") for i in range(2))) as cluster:
        await add_group(cluster, "gang", members=2, gpus=8)
        await cluster.bound("gang0", "gang1")
        await asyncio.gather(*(cluster.remove(name) for name in ("gang0", "gang1")))
        await add_pod_group(cluster, "odd", members=3)
        for number in range(3):
            pod = gpu_pod(f"odd{number}", 4, gpucores=100)
            pod["spec"] |= {
                "schedulingGroup": {"podGroupName": "odd"},
                "nodeSelector": {"no": "where"} if number == 2 else {},
            }
            await cluster.add(pod)

        async def asked() -> bool:
            return any(pod["Pod"]["metadata"]["name"].startswith("odd") for pod, _ in cluster.recorder.of("filter"))

        await until(asked)
        await cluster.refused("odd0")
        for number in range(2):
            await cluster.add(gpu_pod(f"whole{number}", 8, gpucores=100))
        await cluster.bound("whole0", "whole1")
