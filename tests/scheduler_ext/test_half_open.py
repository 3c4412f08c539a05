"""The extender before an API server whose connections carry nothing any more, though both sides find them open."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from scheduler_ext.settings import LeaseSettings
from simulation.apiserver import EmbeddedApiServer
from tests.builders import node_json, pod_json
from tests.polling import until
from tests.relay import Relay
from tests.scheduler_ext.rig import FAST, Rig, extender_for

ELECTION = LeaseSettings(elects=True, name="sched", namespace="kube-system", identity="host-1")
LEASE_SECONDS = 8


@dataclass
class Behind:
    rig: Rig
    relay: Relay
    _renewals: int = field(default=0)

    async def readyz(self) -> tuple[int, str]:
        return await self.rig.status("/readyz")

    async def is_ready(self) -> bool:
        return (await self.readyz())[0] == 200

    async def is_unready(self) -> bool:
        return not await self.is_ready()

    async def renew(self) -> None:
        """As the kube-scheduler beside us does, over a connection of its own."""
        while True:
            await asyncio.sleep(1)
            self._renewals += 1
            spec = {"renewTime": f"2030-01-01T00:{self._renewals // 60:02}:{self._renewals % 60:02}.000000Z"}
            self.rig.server.patch("leases", ELECTION.name, {"spec": spec}, namespace=ELECTION.namespace)


@asynccontextmanager
async def behind_a_relay(
    *, lease: LeaseSettings | None = None, api_seconds: float = 30.0, silent_seconds: float = 65.0
) -> AsyncIterator[Behind]:
    async with EmbeddedApiServer() as server, Relay(int(server.url.rpartition(":")[2])) as relay:
        server.create(node_json("n", gpus=2, replicas=1))
        server.create(lease_json())
        async with extender_for(
            server,
            FAST,
            synced=True,
            lease=lease,
            api_url=relay.url,
            api_seconds=api_seconds,
            silent_seconds=silent_seconds,
        ) as rig:
            yield Behind(rig, relay)


def lease_json() -> dict[str, object]:
    spec = {
        "holderIdentity": "host-1_a",
        "leaseDurationSeconds": LEASE_SECONDS,
        "renewTime": "2030-01-01T00:00:00.000000Z",
    }
    metadata = {"name": ELECTION.name, "namespace": ELECTION.namespace}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


async def offered(rig: Rig, pod: str, node: str, *others: str) -> bool:
    """Whether a pod of two GPUs is offered the node."""
    return bool((await rig.filter(pod_json(pod, gpus=2), node, *others))["NodeNames"] == [node])


async def test_while_nothing_is_carried_readyz_says_so_and_nothing_is_lost() -> None:
    async with behind_a_relay(api_seconds=0.5, silent_seconds=0.5) as behind:
        rig = behind.rig
        first = rig.add_pod("first", gpus=2)
        assert (await rig.filter(first, "n"))["NodeNames"] == ["n"]
        assert await rig.bind(first, "n") == ""
        behind.relay.silence()
        await until(behind.is_unready)
        status, why = await behind.readyz()
        assert status == 503
        assert "is interrupted: the API server" in why
        # kube-scheduler is answered from what was known.
        assert not await offered(rig, "second", "n")
        rig.server.delete("pods", "first", namespace="default")
        rig.server.create(node_json("later"))
        behind.relay.restore()
        await until(behind.is_ready)
        await until(partial(offered, rig, "second", "n", "later"))


async def test_a_dead_watch_of_the_lease_does_not_stop_the_leader() -> None:
    """The lease is renewed all the time, and expires for those who do not see it."""
    async with behind_a_relay(lease=ELECTION) as behind:
        renewing = asyncio.create_task(behind.renew())
        try:
            await until(partial(offered, behind.rig, "p", "n"))
            behind.relay.silence_open()
            over = asyncio.get_running_loop().time() + LEASE_SECONDS + 2
            while asyncio.get_running_loop().time() < over:
                assert await offered(behind.rig, "p", "n")
                await asyncio.sleep(0.5)
        finally:
            renewing.cancel()
            behind.relay.cut()
