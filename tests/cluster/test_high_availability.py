"""Two replicas of the scheduler's pod, and what becomes of placing when the leader's extender fails.

The seconds that each test prints (`pytest -rP`) are those of docs/compatibility.md.
"""

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.cluster.peers import Peer, real
from tests.cluster.replicas import Replica, can_be_named, replicas
from tests.cluster.scheduling import EXTENDER_RIGHTS, EXTENDER_USER, clear, gpu_node, gpu_pod, grant_rights
from tests.polling import until

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(not can_be_named(), reason="needs host names of its own: root")]

LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler"


@dataclass
class Pair:
    peer: Peer
    namespace: str
    replicas: tuple[Replica, ...]
    numbers: list[int] = field(default_factory=list)

    async def holder(self) -> str:
        """The replica whose kube-scheduler holds the lease."""
        status, lease = await self.peer.send("GET", LEASE)
        return str(lease["spec"].get("holderIdentity") or "").partition("_")[0] if status == 200 else ""

    async def leader(self) -> Replica:
        name = await self.holder()
        return next(each for each in self.replicas if each.name == name)

    async def other(self) -> Replica:
        name = await self.holder()
        return next(each for each in self.replicas if each.name != name)

    async def leads(self, replica: Replica) -> bool:
        return await self.holder() == replica.name

    async def place(self) -> str:
        """Returns once a pod that is made now is placed; its name."""
        self.numbers.append(len(self.numbers))
        name = f"p{self.numbers[-1]}"
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        await self.peer.create(path, gpu_pod(name, 1, gpumem=100))

        async def is_placed() -> bool:
            _, pod = await self.peer.send("GET", f"{path}/{name}")
            return bool(pod["spec"].get("nodeName"))

        await until(is_placed)
        return name


@asynccontextmanager
async def at_work(plane: ControlPlane, folder: Path) -> AsyncIterator[Pair]:
    async with real(plane) as peer:
        namespace = await peer.namespace(f"test-{uuid.uuid4().hex[:8]}")
        await grant_rights(peer, EXTENDER_USER, EXTENDER_RIGHTS)
        await peer.create("/api/v1/nodes", gpu_node("a"))
        try:
            async with replicas(plane, folder, "replica-a", "replica-b") as both:
                pair = Pair(peer, namespace, both)
                await pair.place()
                yield pair
        finally:
            await peer.send("DELETE", LEASE)
            await clear(peer, namespace)


async def seconds_until_placed(pair: Pair) -> float:
    began = asyncio.get_running_loop().time()
    await pair.place()
    return asyncio.get_running_loop().time() - began


def report(what: str, seconds: float, pair: Pair, leads: str) -> None:
    starts = {one.name: one.started for each in pair.replicas for one in (each.extender, each.kube_scheduler)}
    print(f"{what}: the next pod was placed after {seconds:.1f} s; {leads} leads; starts: {starts}")


@pytest.mark.parametrize("how", ["hangs", "crashes again and again"])
async def test_the_other_replica_places_pods_when_the_leaders_extender(
    plane: ControlPlane, tmp_path: Path, how: str
) -> None:
    async with at_work(plane, tmp_path) as pair:
        leader, other = await pair.leader(), await pair.other()
        if how == "hangs":
            os.kill(leader.extender.pid, signal.SIGSTOP)
        else:
            leader.extender.fails.set()
            os.kill(leader.extender.pid, signal.SIGKILL)
        seconds = await seconds_until_placed(pair)
        report(f"an extender that {how}", seconds, pair, await pair.holder())
        assert await pair.leads(other)
        assert (other.extender.started, other.kube_scheduler.started) == (1, 1)


async def test_an_extender_that_is_killed_once_is_back_before_the_lease_is_given_up(
    plane: ControlPlane, tmp_path: Path
) -> None:
    async with at_work(plane, tmp_path) as pair:
        leader = await pair.leader()
        os.kill(leader.extender.pid, signal.SIGKILL)
        seconds = await seconds_until_placed(pair)
        report("an extender that is killed once", seconds, pair, await pair.holder())
        assert await pair.leads(leader)
        assert leader.kube_scheduler.started == 1


async def test_an_extender_that_stops_for_a_moment_costs_no_lease(plane: ControlPlane, tmp_path: Path) -> None:
    """Three of kubelet's questions go unanswered, and five would have to."""
    async with at_work(plane, tmp_path) as pair:
        leader = await pair.leader()
        os.kill(leader.extender.pid, signal.SIGSTOP)
        await asyncio.sleep(6)
        os.kill(leader.extender.pid, signal.SIGCONT)
        report("an extender that stops for 6 s", await seconds_until_placed(pair), pair, await pair.holder())
        for _ in range(5):
            await asyncio.sleep(2)
            assert await pair.leads(leader)
        assert leader.kube_scheduler.started == 1


async def test_a_kube_scheduler_that_hangs_is_restarted_and_the_other_replica_places_pods(
    plane: ControlPlane, tmp_path: Path
) -> None:
    async with at_work(plane, tmp_path) as pair:
        leader, other = await pair.leader(), await pair.other()
        os.kill(leader.kube_scheduler.pid, signal.SIGSTOP)
        seconds = await seconds_until_placed(pair)
        report("a kube-scheduler that hangs", seconds, pair, await pair.holder())
        assert await pair.leads(other)

        async def is_restarted() -> bool:
            return leader.kube_scheduler.started == 2

        await until(is_restarted)
        assert leader.extender.started == 1
