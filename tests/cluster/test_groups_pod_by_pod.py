"""Groups on a kube-scheduler that knows none: their pods come one by one, and Kueue's annotation has their number."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from scheduler_ext.membership import KUEUE_GROUP, KUEUE_SIZE
from tests.cluster.control_plane import ControlPlane
from tests.cluster.peers import real
from tests.cluster.scheduling import Cluster, gpu_node, gpu_pod, running
from tests.polling import until

pytestmark = pytest.mark.cluster
MEMBERS = 4


@pytest.fixture
async def cluster(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Cluster]:
    nodes = (gpu_node(f"n{number}") for number in range(MEMBERS + 2))
    async with real(plane) as peer, running(plane, peer, tmp_path, *nodes) as found:
        yield found


def names(group: str) -> list[str]:
    return [f"{group}{number}" for number in range(MEMBERS)]


async def add(cluster: Cluster, group: str) -> None:
    for name in names(group):
        pod = gpu_pod(name, 8, gpucores=100, annotations={KUEUE_SIZE: str(MEMBERS)})
        pod["metadata"]["labels"] = {KUEUE_GROUP: group}
        await cluster.add(pod)


async def bound(cluster: Cluster) -> dict[str, int]:
    pods = await cluster.pods()
    placed = {name for name, pod in pods.items() if pod["spec"].get("nodeName")}
    return {group: len(placed.intersection(names(group))) for group in "gh"}


async def test_of_two_groups_that_fit_one_after_the_other_one_is_bound_whole_and_the_other_waits(
    cluster: Cluster,
) -> None:
    await asyncio.gather(add(cluster, "g"), add(cluster, "h"))

    async def one_is_whole() -> bool:
        return MEMBERS in (await bound(cluster)).values()

    await until(one_is_whole)
    first, second = sorted("gh", key=(await bound(cluster)).__getitem__, reverse=True)
    condition = await cluster.refused(f"{second}0")
    assert "GroupDoesNotFit" in condition["message"] or "CardInsufficientMemory" in condition["message"]
    assert (await bound(cluster))[second] == 0
    await asyncio.gather(*(cluster.remove(name) for name in names(first)))
    await cluster.bound(*names(second))
