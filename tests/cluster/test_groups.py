"""Groups of pods, which the real kube-scheduler schedules as a whole (GenericWorkload, not on by default)."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from proto.annotations.keys import PREFERRED_TOPOLOGY, REQUIRED_TOPOLOGY
from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import ControlPlane
from tests.cluster.groups import add_group, add_pod_group, plane_with_groups
from tests.cluster.peers import Peer, real
from tests.cluster.scheduling import JsonObject, gpu_node, gpu_pod, running
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


RACK = "cloud.provider.com/topology-rack"


def two_racks() -> list[JsonObject]:
    """Racks `a` and `b` of four nodes with eight GPUs."""
    nodes = [gpu_node(f"{rack}{number}") for rack in "ab" for number in range(4)]
    for node in nodes:
        node["metadata"]["labels"][RACK] = node["metadata"]["name"][0]
    return nodes


async def test_a_group_goes_into_one_rack_with_its_ranks_side_by_side(
    plane: ControlPlane, api_server: Peer, tmp_path: Path
) -> None:
    async with running(plane, api_server, tmp_path, *two_racks()) as cluster:
        await cluster.add(gpu_pod("busy", 8, gpucores=100))
        await cluster.bound("busy")
        busy = (await cluster.node_of("busy"))[0]
        await add_group(cluster, "three", members=3, gpus=8)
        await cluster.bound("three0", "three1", "three2")
        assert {(await cluster.node_of(f"three{number}"))[0] for number in range(3)} == {busy}
        await add_group(cluster, "eight", members=8, gpus=4, annotations={REQUIRED_TOPOLOGY: RACK})
        names = [f"eight{number}" for number in range(8)]
        await cluster.bound(*names)
        nodes = [await cluster.node_of(name) for name in names]
        assert {node[0] for node in nodes} == {"a", "b"} - {busy}
        assert all(nodes[rank] == nodes[rank + 1] for rank in range(0, 8, 2))


async def test_a_group_waits_for_its_rack_and_a_preferred_one_is_left_where_it_is_too_small(
    plane: ControlPlane, api_server: Peer, tmp_path: Path
) -> None:
    async with running(plane, api_server, tmp_path, *two_racks()) as cluster:
        await add_group(cluster, "required", members=5, gpus=8, annotations={REQUIRED_TOPOLOGY: RACK})
        refused = [(await cluster.refused(f"required{number}"))["message"] for number in range(5)]
        sentence = "needs 5 nodes of one rack; the largest free rack has 4"
        assert any(sentence in message for message in refused), refused
        assert not any([await cluster.node_of(f"required{number}") for number in range(5)])
        await add_group(cluster, "preferred", members=5, gpus=8, annotations={PREFERRED_TOPOLOGY: RACK})
        names = [f"preferred{number}" for number in range(5)]
        await cluster.bound(*names)
        racks = sorted([(await cluster.node_of(name))[0] for name in names])
        assert racks in (["a"] * 4 + ["b"], ["a"] + ["b"] * 4)
