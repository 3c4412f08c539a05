"""etcd is restored from a backup, below the real kube-apiserver: both programs notice it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from deviceplugin.apiserver import OwnNode
from deviceplugin.changes import Changes
from proto.kubernetes.client import ApiServer
from proto.kubernetes.objects import LEASES, NODES, Lease, LeaseSpec, Node, ObjectMeta
from scheduler_ext.http.server import listening_to_kube_scheduler
from scheduler_ext.requests import RequestSettings
from scheduler_ext.running import running_extender
from scheduler_ext.settings import LeaseSettings
from tests.builders import pod_json
from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import ControlPlane
from tests.polling import until
from tests.scheduler_ext.rig import ANY_PORT, FAST

pytestmark = pytest.mark.cluster
ELECTION = LeaseSettings(elects=True, name="topogpu-scheduler", namespace="kube-system", identity="host-1")
LOST_WRITES = 300
NOTICED_SECONDS = 30.0
"""From the first answer of the restored API server; the programs try again after up to a back-off of theirs."""


async def renew(api: ApiServer, holder: str, second: int) -> None:
    spec = {"holderIdentity": holder, "renewTime": f"2030-01-01T00:{second // 60:02}:{second % 60:02}.000000Z"}
    await api.patch(LEASES, ELECTION.name, {"spec": spec}, namespace="kube-system")


@asynccontextmanager
async def extender(api: ApiServer) -> AsyncIterator[Callable[[], Awaitable[bool]]]:
    """Yields whether it decides."""
    async with (
        running_extender(api, FAST, RequestSettings(), ELECTION) as parts,
        listening_to_kube_scheduler(parts.verbs, ANY_PORT, "-") as url,
        aiohttp.ClientSession() as http,
    ):

        async def decides() -> bool:
            body = {"Pod": pod_json("probe"), "Nodes": None, "NodeNames": ["n"]}
            async with http.post(url + "/filter", json=body) as answer:
                return not (await answer.json())["Error"]

        yield decides


async def test_both_programs_follow_a_restored_history(kubernetes: Binaries, tmp_path: Path) -> None:
    with ControlPlane(kubernetes, tmp_path) as plane:
        api = await ApiServer.connect(plane.kubeconfig())
        await api.create(NODES, Node(metadata=ObjectMeta(name="n")))
        spec = LeaseSpec(holder_identity="host-1_a", lease_duration_seconds=120)
        lease = Lease(metadata=ObjectMeta(name=ELECTION.name, namespace="kube-system"), spec=spec)
        await api.create(LEASES, lease, namespace="kube-system")
        await asyncio.to_thread(plane.back_up)
        own = OwnNode(api, "n", Changes())

        def lost() -> str | None:
            return None if own.node is None else own.node.metadata.labels.get("lost", "")

        following = [asyncio.create_task(work()) for work in (own.follow_node, own.follow_pods)]
        async with extender(api) as decides:
            await until(decides)
            for number in range(LOST_WRITES):
                await api.patch(NODES, "n", {"metadata": {"labels": {"lost": str(number)}}})
            await until(lambda: lost() == str(LOST_WRITES - 1))
            await asyncio.to_thread(plane.restore)
            began = asyncio.get_running_loop().time()
            await renew(api, "host-2_b", 1)
            await until(lambda: lost() == "")

            async def follows() -> bool:
                return not await decides()

            await until(follows)
            await renew(api, "host-1_b", 2)
            await until(decides)

            assert asyncio.get_running_loop().time() - began < NOTICED_SECONDS
        for task in following:
            task.cancel()
        await api.close()
