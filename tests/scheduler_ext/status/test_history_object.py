"""The history of the page in a ConfigMap: a new pod of the extender goes on with it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from tempfile import NamedTemporaryFile
from typing import Any

import msgspec
import pytest

from proto.kubernetes.client import ApiServer
from scheduler_ext.cluster.pod_index import PodName
from scheduler_ext.http.ports import listening
from scheduler_ext.status.board import SAMPLE_SECONDS, SAMPLES, Board
from scheduler_ext.status.history_object import KEY, LARGEST_BYTES, HistoryObject
from scheduler_ext.status.poll import Poll
from scheduler_ext.status.server import StatusServer
from scheduler_ext.status.teams import MOST_TEAMS
from simulation.apiserver import EmbeddedApiServer
from tests.polling import until
from tests.scheduler_ext.rig import ANY_PORT, API_SECONDS
from tests.scheduler_ext.status.shown import MODELS, looked, node, running_pod

PLACE = "topogpu-system/topogpu-status-history"
SOON = 0.05
_HELD = looked(node("n"), running_pod("p", "n", (0,), memory_mib=MODELS[0][1]))["n"]
HELD = replace(_HELD, names={uid: PodName(namespace="ml", name="p") for uid in _HELD.alone.held})


@dataclass
class Replica:
    page: StatusServer
    leads: bool = True

    async def counts(self, hours: float) -> bool:
        found: dict[str, float] = json.loads(await self.page.remembered())["gpu_hours"]
        return sum(found.values()) == pytest.approx(hours)

    async def hour(self, at: float) -> None:
        """One pod holds a GPU for an hour."""
        for seconds in (0.0, 3600.0):
            await self.page.show(Poll(monotonic=at + seconds, at=at + seconds, nodes={"n": HELD}))


@asynccontextmanager
async def replica(server: EmbeddedApiServer, process: str, *, leads: bool = True) -> AsyncIterator[Replica]:
    with NamedTemporaryFile("w") as kubeconfig:
        kubeconfig.write(server.kubeconfig())
        kubeconfig.flush()
        api = await ApiServer.connect(kubeconfig.name, timeout_seconds=API_SECONDS)
    async with replica_with(api, process, leads=leads) as it:
        yield it


@asynccontextmanager
async def replica_with(api: ApiServer, process: str, *, leads: bool = True) -> AsyncIterator[Replica]:
    """Closes the client at the end."""
    it = Replica(StatusServer(process), leads)
    kept = HistoryObject(
        api=api, place=PLACE, recall=it.page.recall, remembered=it.page.remembered, leads=lambda: it.leads
    )
    async with listening(it.page.application(), ANY_PORT, "--status-bind-address"):
        task = asyncio.create_task(kept.run(SOON, SOON))
        try:
            yield it
        finally:
            task.cancel()
            await asyncio.wait([task])
            await api.close()


def config_map(**data: str) -> dict[str, Any]:
    namespace, _, name = PLACE.partition("/")
    return {"kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data}


def kept(server: EmbeddedApiServer) -> str:
    namespace, _, name = PLACE.partition("/")
    found = server.store.get("configmaps", namespace, name)
    assert found is not None
    return str((found.get("data") or {}).get(KEY, ""))


async def keeps(server: EmbeddedApiServer, hours: float) -> None:
    async def written() -> bool:
        try:
            return bool(json.loads(kept(server))["gpu_hours"] == {"ml": pytest.approx(hours)})
        except ValueError:
            return False

    await until(written)


@pytest.mark.parametrize("written", ["", "cut short", '{"history":[],"gpu_hours":{"ml":1e999}}'])
async def test_a_new_pod_goes_on_with_history_and_gpu_hours(written: str) -> None:
    async with EmbeddedApiServer() as server:
        server.create(config_map(**{KEY: written} if written else {}))
        for number in range(2):
            async with replica(server, f"p{number}") as leader:
                await until(partial(leader.counts, number))
                await leader.hour(1.0 + 10_000 * number)
                await keeps(server, number + 1)
        assert [sample[0] for sample in json.loads(kept(server))["history"]] == [1.0, 3601.0, 10_001.0, 13_601.0]


async def test_only_the_leader_writes_only_what_is_new_and_creates_nothing() -> None:
    async with (
        EmbeddedApiServer() as server,
        replica(server, "a") as leader,
        replica(server, "b", leads=False) as other,
    ):
        await leader.hour(1.0)
        await other.hour(20_000.0)
        assert server.store.get("configmaps", *PLACE.split("/")) is None
        server.create(config_map())
        await keeps(server, 1.0)
        assert [each.verb for each in server.requests if each.verb != "get"] == ["patch"]
        leader.leads, other.leads = False, True

        async def both_wrote() -> bool:
            return [each.verb for each in server.requests if each.verb != "get"] == ["patch", "patch"]

        await until(both_wrote)
        await keeps(server, 1.0)


def test_what_is_kept_is_bounded() -> None:
    board = Board("p")
    for number in range(SAMPLES + 1):
        board.apply(Poll(monotonic=SAMPLE_SECONDS * number, at=1.8e9 + SAMPLE_SECONDS * number, waiting_total=10**6))
    hours = {f"{number:063}": 1e6 / 7 for number in range(MOST_TEAMS + 1)}
    board.recall(msgspec.json.encode({"history": [], "gpu_hours": hours}))
    board.apply(Poll(monotonic=1e6, at=1.9e9))
    written = board.remembered()
    assert LARGEST_BYTES / 4 < len(written) < LARGEST_BYTES / 2
    other = Board("q")
    other.recall(written)
    assert json.loads(other.remembered()) == json.loads(written)
