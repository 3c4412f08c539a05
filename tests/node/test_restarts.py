"""Containers, kubelet, the daemon, containerd and the whole node end and come back; every container keeps its GPUs."""

import asyncio
import re
import signal
from typing import Any

import pytest

from tests.node.pods import SEVERAL, Pods, container, decided, pod
from tests.node.real_node import RealNode

pytestmark = [pytest.mark.node, pytest.mark.needs_compiler]
BOTH = pytest.mark.parametrize("allocation", ["slots", "immediate"])
HOW = pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["ended", "killed"])


def running(pod: dict[str, Any]) -> dict[str, tuple[str, int]]:
    """By container: its id, and how often it was started again."""
    return {one["name"]: (one["containerID"], one["restartCount"]) for one in pod["status"]["containerStatuses"]}


@BOTH
async def test_a_container_that_ends_again_and_again_gets_the_same_each_time(scheduled: Pods, allocation: str) -> None:
    await scheduled.serve("--allocation", allocation, *SEVERAL)
    await scheduled.add(pod("again", container(gpus=2, gpumem=1000, ends=True), container("beside", gpumem=500)))
    for number in range(3):
        await scheduled.check("again", "main", number=number)
    await scheduled.check("again", "beside")
    assert scheduled.node.daemon is not None
    if allocation == "slots":
        assert scheduled.node.daemon.text().count("container main: served") >= 3


@BOTH
@HOW
async def test_kubelet_comes_back_and_counts_again_while_containers_run_on(
    scheduled: Pods, allocation: str, how: signal.Signals
) -> None:
    await scheduled.serve("--allocation", allocation)
    await scheduled.add(pod("before", container(gpumem=1000)))
    before = await scheduled.started("before")
    await asyncio.to_thread(scheduled.node.stop_kubelet, how)
    await asyncio.to_thread(scheduled.node.start_kubelet)
    await scheduled.logged("registered nvidia.com/gpu with kubelet", times=2)
    await scheduled.offered(80)
    await scheduled.add(pod("after", container(gpumem=2000)))
    await scheduled.started("after")
    await scheduled.check("after", "main")
    await scheduled.check("before", "main")
    assert running(await scheduled.get("before")) == running(before["before"])


@BOTH
@HOW
async def test_the_daemon_comes_back_while_containers_run_and_others_are_waiting_for_it(
    scheduled: Pods, allocation: str, how: signal.Signals
) -> None:
    flags = ("--allocation", allocation)
    await scheduled.serve(*flags)
    await scheduled.add(pod("steady", container(gpumem=1000)), pod("again", container(gpumem=700, ends=True)))
    before = await scheduled.started("steady")
    known = (await scheduled.starts("again"))[-1].number
    await asyncio.to_thread(scheduled.node.stop_daemon, how)
    await scheduled.offered(0)
    await scheduled.add(pod("waiting", container(gpumem=2000)))
    await scheduled.serve(*flags)
    await scheduled.check("again", "main", number=known + 1)
    assert running(await scheduled.get("steady")) == running(before["steady"])
    await scheduled.remove("waiting")
    await scheduled.add(pod("after", container(gpumem=3000)))
    await scheduled.started("after")
    await scheduled.check("after", "main")


@BOTH
async def test_pods_whose_containers_do_not_run_while_kubelet_restarts_are_admitted_again(
    scheduled: Pods, allocation: str
) -> None:
    """Kubelet lists its pods a second after it serves its socket: by then the daemon must have registered."""
    await scheduled.serve("--allocation", allocation)
    init = container("init", ends=True, gpumem=await scheduled.init_memory(900))
    await scheduled.add(
        pod("again", container(gpumem=700, ends=True)), pod("staged", container(gpumem=800), init=(init,))
    )
    before = await scheduled.started("staged")
    await scheduled.starts("again", number=1)
    await asyncio.to_thread(scheduled.node.stop_kubelet)
    await asyncio.to_thread(scheduled.node.start_kubelet)
    await scheduled.check("again", "main", number=2)
    assert running(await scheduled.get("staged")) == running(before["staged"])


async def six_pods(scheduled: Pods) -> dict[str, dict[str, Any]]:
    await scheduled.add(
        *(pod(f"pod-{at}", container("a", gpumem=1000 + at), container("b", gpus=2, gpumem=900)) for at in range(6))
    )
    return await scheduled.started(*(f"pod-{at}" for at in range(6)))


async def power_cut(node: RealNode) -> None:
    await asyncio.to_thread(node.power_off)
    assert not node.cdi.exists()
    assert (node.root / "device-plugins" / "kubelet_internal_checkpoint").exists()
    await asyncio.to_thread(node.power_on)


@BOTH
async def test_after_the_power_was_cut_every_container_comes_back_with_its_own_gpus(
    scheduled: Pods, allocation: str
) -> None:
    node, flags = scheduled.node, ("--allocation", allocation, *SEVERAL)
    await scheduled.serve(*flags)
    before = await six_pods(scheduled)
    await power_cut(node)
    await asyncio.to_thread(node.start_daemon, *flags)
    await scheduled.logged("Allocation ")
    await asyncio.to_thread(node.start_kubelet)
    for name in before:
        await scheduled.check(name, "a", "b", number=1)
        after = await scheduled.get(name)
        for each in ("a", "b"):
            assert decided(after, each) == decided(before[name], each)
    await scheduled.offered(80)


@BOTH
async def test_pods_that_kubelet_refuses_after_a_power_cut_give_their_gpus_to_their_successors(
    scheduled: Pods, allocation: str
) -> None:
    """Kubelet admits the pods it finds before a plugin that starts with them, or later, can have registered."""
    node, flags = scheduled.node, ("--allocation", allocation, *SEVERAL)
    await scheduled.serve(*flags)
    before = await six_pods(scheduled)
    await power_cut(node)
    await asyncio.to_thread(node.start_kubelet)
    for name in before:
        refused = await scheduled.failed(name)
        assert (refused["reason"], refused["message"]) == (
            "UnexpectedAdmissionError",
            "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices "
            "nvidia.com/gpu, which is unexpected",
        )
    await scheduled.serve(*flags)
    await scheduled.add(pod("all", container(gpus=8, gpumem=40000)))
    await scheduled.started("all")
    await scheduled.check("all", "main")


async def test_a_daemon_that_starts_while_the_api_server_is_away_serves_the_pods_that_its_life_before_knew(
    scheduled: Pods,
) -> None:
    await scheduled.serve("--allocation", "slots")
    await scheduled.add(pod("steady", container(gpumem=1000)), pod("again", container(gpumem=700, ends=True)))
    await scheduled.started("steady")
    known = (await scheduled.starts("again"))[-1].number
    await asyncio.to_thread(scheduled.node.stop_daemon, signal.SIGKILL)
    await scheduled.offered(0)
    nobody = scheduled.node.root.parent / "nobody.kubeconfig"
    own = scheduled.node.root.parent / "daemon.kubeconfig"
    nobody.write_text(re.sub(r"https://[\d.]+:\d+", "https://127.0.0.1:1", own.read_text()))
    await asyncio.to_thread(scheduled.node.start_daemon, "--allocation", "slots", "--kubeconfig", str(nobody))
    await scheduled.logged("the API server is unreachable")
    await scheduled.offered(80)
    await scheduled.check("again", "main", number=known + 1)
