"""Groups of pods, which the real kube-scheduler schedules as a whole (GenericWorkload, not on by default)."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import ControlPlane
from tests.cluster.peers import Peer, real
from tests.cluster.scheduling import Cluster, gpu_node, gpu_pod, running
from tests.polling import until

pytestmark = pytest.mark.cluster
GROUPS = "scheduling.k8s.io/v1beta1"


@pytest.fixture(scope="module")
def plane(kubernetes: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    version = subprocess.run(
        [kubernetes.path("kube-scheduler"), "--version"], check=True, capture_output=True, text=True
    )
    if int(version.stdout.split(".")[1]) < 37:
        pytest.skip("kube-scheduler schedules no groups before 1.37")
    folder = tmp_path_factory.mktemp("control-plane-with-groups")
    with ControlPlane(kubernetes, folder, gates="GenericWorkload=true", apis=f"{GROUPS}=true") as running:
        yield running


@pytest.fixture
async def api_server(plane: ControlPlane) -> AsyncIterator[Peer]:
    async with real(plane) as peer:
        yield peer


async def add_group(cluster: Cluster, name: str, members: int, gpus: int) -> None:
    """That is bound as a whole or not at all."""
    path = f"/apis/{GROUPS}/namespaces/{cluster.namespace}/podgroups"
    spec = {"schedulingPolicy": {"gang": {"minCount": members}}}
    await cluster.peer.create(
        path, {"apiVersion": GROUPS, "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}
    )
    for number in range(members):
        pod = gpu_pod(f"{name}{number}", gpus, gpucores=100)
        pod["spec"]["schedulingGroup"] = {"podGroupName": name}
        await cluster.add(pod)


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
        path = f"/apis/{GROUPS}/namespaces/{cluster.namespace}/podgroups"
        spec = {"schedulingPolicy": {"gang": {"minCount": 3}}}
        await cluster.peer.create(
            path, {"apiVersion": GROUPS, "kind": "PodGroup", "metadata": {"name": "odd"}, "spec": spec}
        )
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
