"""Groups of pods that Coscheduling of kubernetes-sigs/scheduler-plugins binds as a whole: Permit waits for the last.

Where a test does not say otherwise neither leases nor Permit end in time to help.
"""

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import coscheduling
from tests.cluster.binaries import Binaries, NoBinaries
from tests.cluster.control_plane import ControlPlane
from tests.cluster.peers import Peer, real
from tests.cluster.scheduling import Cluster, gpu_node, gpu_pod, grant_rights, running
from tests.polling import until

pytestmark = pytest.mark.cluster
GROUP = "scheduling.x-k8s.io"
KIND = f"{GROUP}/v1alpha1"
NEVER_SECONDS = 3600
PROFILE = {
    "schedulerName": "topogpu-scheduler",
    "plugins": {
        "multiPoint": {"enabled": [{"name": "Coscheduling"}]},
        "queueSort": {"enabled": [{"name": "Coscheduling"}], "disabled": [{"name": "*"}]},
    },
    "pluginConfig": [{"name": "Coscheduling", "args": {"permitWaitingTimeSeconds": NEVER_SECONDS}}],
}
MERGE_PATCH = "application/merge-patch+json"
GATE = {"name": "example.com/not-yet"}


@pytest.fixture(scope="module")
def plane(kubernetes: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    try:
        folder = coscheduling.find()
    except NoBinaries as reason:
        pytest.skip(str(reason))
    binaries = replace(kubernetes, scheduler=folder / coscheduling.SCHEDULER)
    with ControlPlane(binaries, tmp_path_factory.mktemp("control-plane-with-coscheduling")) as running:
        running.kubectl("apply", "-f", str(folder / coscheduling.DEFINITION))
        running.kubectl("wait", "--for=condition=Established", f"crd/podgroups.{GROUP}", "--timeout=60s")
        yield running


@pytest.fixture
async def api_server(plane: ControlPlane) -> AsyncIterator[Peer]:
    async with real(plane) as peer:
        await grant_rights(peer, "system:kube-scheduler", [(GROUP, "podgroups", "get list watch")], role="coscheduling")
        yield peer


@asynccontextmanager
async def nodes(
    plane: ControlPlane, peer: Peer, folder: Path, count: int, lease: str = f"{NEVER_SECONDS}s"
) -> AsyncIterator[Cluster]:
    """Of eight GPUs each."""
    machines = (gpu_node(f"n{number}") for number in range(count))
    options = ("--reservation-lease", lease)
    async with running(plane, peer, folder, *machines, options=options, profiles=[PROFILE]) as cluster:
        yield cluster


def member(group: str, name: str, gpus: int = 8, **spec: Any) -> dict[str, Any]:
    pod = gpu_pod(name, gpus, gpucores=100)
    pod["metadata"]["labels"] = {f"{GROUP}/pod-group": group}
    pod["spec"] |= spec
    return pod


async def add_group(cluster: Cluster, name: str, members: int, **spec: object) -> None:
    document = {"apiVersion": KIND, "kind": "PodGroup", "metadata": {"name": name}}
    path = f"/apis/{KIND}/namespaces/{cluster.namespace}/podgroups"
    await cluster.peer.create(path, {**document, "spec": {"minMember": members, **spec}})


async def add_gang(cluster: Cluster, name: str, *members: dict[str, Any]) -> None:
    await add_group(cluster, name, len(members))
    for pod in members:
        await cluster.add(pod)


def on(node: str) -> dict[str, str]:
    """For the one node."""
    return {"kubernetes.io/hostname": node}


async def change(cluster: Cluster, name: str, changes: dict[str, Any]) -> None:
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/{name}"
    status, answer = await cluster.peer.send("PATCH", path, changes, MERGE_PATCH)
    assert status == 200, answer


async def promised(cluster: Cluster, name: str, times: int = 1) -> None:
    """The extender said where it may go."""

    async def answered() -> bool:
        answers = cluster.recorder.of("filter")
        named = [answer for asked, answer in answers if asked["Pod"]["metadata"]["name"] == name]
        return len([answer for answer in named if answer.get("NodeNames")]) >= times

    await until(answered)


async def bound_of(cluster: Cluster, *names: str) -> list[str]:
    pods = await cluster.pods()
    return [name for name in names if pods[name]["spec"].get("nodeName")]


async def test_a_gang_that_fits_is_bound_as_a_whole(plane: ControlPlane, api_server: Peer, tmp_path: Path) -> None:
    async with nodes(plane, api_server, tmp_path, 3) as cluster:
        names = ("gang0", "gang1", "gang2")
        await add_gang(cluster, "gang", *(member("gang", name) for name in names))
        await cluster.bound(*names)
        assert {await cluster.node_of(name) for name in names} == {"n0", "n1", "n2"}


async def test_a_gang_with_too_few_gpus_keeps_nothing_from_other_pods(
    plane: ControlPlane, api_server: Peer, tmp_path: Path
) -> None:
    async with nodes(plane, api_server, tmp_path, 2) as cluster:
        names = ("gang0", "gang1", "gang2")
        await add_gang(cluster, "gang", *(member("gang", name) for name in names))
        await cluster.refused("gang0")
        others = [f"other{number}" for number in range(4)]
        for name in others:
            await cluster.add(gpu_pod(name, 4, gpucores=100))
            await cluster.bound(name)
        assert await bound_of(cluster, *names) == []


async def test_a_gang_of_which_another_plugin_refuses_a_member_keeps_nothing_from_other_pods(
    plane: ControlPlane, api_server: Peer, tmp_path: Path
) -> None:
    """Only after the first attempt do the pods' status say what became of it."""
    async with nodes(plane, api_server, tmp_path, 2, lease="60s") as cluster:
        names = ("gang0", "gang1", "gang2")
        last = member("gang", "gang2", nodeSelector={"no": "where"})
        await add_gang(cluster, "gang", member("gang", "gang0"), member("gang", "gang1"), last)
        for number in range(4):
            await promised(cluster, "gang1", times=number + 1)
            name, began = f"other{number}", time.monotonic()
            await cluster.add(gpu_pod(name, 8, gpucores=100))
            await cluster.bound(name)
            print(f"bound {time.monotonic() - began:.1f} s later")
            await cluster.remove(name)
            for waiting in names[:2]:
                # kube-scheduler tries a pod that has changed again.
                await change(cluster, waiting, {"metadata": {"annotations": {"example.com/round": f"{number}"}}})
        assert await bound_of(cluster, *names) == []


async def test_once_permit_waited_long_enough_the_gang_lets_go(
    plane: ControlPlane, api_server: Peer, tmp_path: Path
) -> None:
    async with nodes(plane, api_server, tmp_path, 2) as cluster:
        await add_group(cluster, "gang", members=2, scheduleTimeoutSeconds=5)
        await cluster.add(member("gang", "gang1", schedulingGates=[GATE]))
        await cluster.add(member("gang", "gang0"))
        await promised(cluster, "gang0")
        for name in ("other0", "other1"):
            await cluster.add(gpu_pod(name, 8, gpucores=100))
        await cluster.bound("other0", "other1")
        assert await bound_of(cluster, "gang0", "gang1") == []


async def test_of_two_gangs_that_fit_alone_and_not_together_one_is_bound_as_a_whole_and_then_the_other(
    plane: ControlPlane, api_server: Peer, tmp_path: Path
) -> None:
    """Their pods come in turn, and are tried in turn where the groups are of one second."""
    async with nodes(plane, api_server, tmp_path, 2) as cluster:
        gangs = {"odd": ("p1", "p3"), "even": ("p0", "p2")}
        for gang in gangs:
            await add_group(cluster, gang, members=2)
        for number in range(4):
            await cluster.add(member("odd" if number % 2 else "even", f"p{number}"))

        async def one_is_whole() -> bool:
            return any([await bound_of(cluster, *names) == list(names) for names in gangs.values()])

        await until(one_is_whole)
        first = await bound_of(cluster, "p0", "p1", "p2", "p3")
        assert tuple(first) in gangs.values()
        for name in first:
            await cluster.remove(name)
        await cluster.bound(*(await cluster.pods()))


async def test_a_gang_whose_lease_ended_while_permit_waited_is_not_bound_in_part(
    plane: ControlPlane, api_server: Peer, tmp_path: Path
) -> None:
    async with nodes(plane, api_server, tmp_path, 2, lease="2s") as cluster:
        names = ("gang0", "gang1")
        await add_group(cluster, "gang", members=2)
        await cluster.add(member("gang", "gang1", nodeSelector=on("n1"), schedulingGates=[GATE]))
        await cluster.add(member("gang", "gang0", nodeSelector=on("n0")))
        await promised(cluster, "gang0")
        other = gpu_pod("other", 8, gpucores=100)
        await cluster.add(other | {"spec": other["spec"] | {"nodeSelector": on("n0")}})
        await cluster.bound("other")
        await change(cluster, "gang1", {"spec": {"schedulingGates": None}})
        await cluster.refused("gang0")
        assert await bound_of(cluster, *names) == []
        await cluster.remove("other")
        await cluster.bound(*names)
