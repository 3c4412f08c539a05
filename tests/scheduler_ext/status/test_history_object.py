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
from scheduler_ext.http.server import listening
from scheduler_ext.status.board import SAMPLE_SECONDS, SAMPLES, Board
from scheduler_ext.status.history_object import KEY, LARGEST_BYTES, HistoryObject
from scheduler_ext.status.server import StatusServer
from scheduler_ext.status.teams import MOST_TEAMS
from scheduler_ext.status.view import Poll
from simulation.apiserver import EmbeddedApiServer
from simulation.apiserver.faults import Fault
from tests.polling import until
from tests.scheduler_ext.rig import ANY_PORT, API_SECONDS
from tests.scheduler_ext.status.shown import MODELS, looked, node, running_pod

PLACE = "topogpu-system/topogpu-scheduler-status-history"
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
async def replica(
    server: EmbeddedApiServer, process: str, *, leads: bool = True, write_seconds: float = SOON
) -> AsyncIterator[Replica]:
    with NamedTemporaryFile("w") as kubeconfig:
        kubeconfig.write(server.kubeconfig())
        kubeconfig.flush()
        api = await ApiServer.connect(kubeconfig.name, timeout_seconds=API_SECONDS)
    async with replica_with(api, process, leads=leads, write_seconds=write_seconds) as it:
        yield it


@asynccontextmanager
async def replica_with(
    api: ApiServer, process: str, *, leads: bool = True, write_seconds: float = SOON
) -> AsyncIterator[Replica]:
    """Closes the client at the end."""
    it = Replica(StatusServer(process), leads)
    kept = HistoryObject(
        api=api, place=PLACE, recall=it.page.recall, remembered=it.page.remembered, leads=lambda: it.leads
    )
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(kept.run(write_seconds, SOON))
        async with listening(it.page.application(), ANY_PORT, "--status-bind-address"):
            yield it
        it.leads = False  # as at the end of the extender
        task.cancel()
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
        await other.hour(1.0)
        assert server.store.get("configmaps", *PLACE.split("/")) is None
        server.create(config_map())
        await keeps(server, 1.0)
        assert [each.verb for each in server.requests if each.verb != "get"] == ["patch"]
        leader.leads, other.leads = False, True

        async def both_wrote() -> bool:
            return [each.verb for each in server.requests if each.verb != "get"] == ["patch", "patch"]

        await until(both_wrote)
        await keeps(server, 1.0)


async def test_hours_that_were_counted_before_the_history_could_be_read_are_added() -> None:
    async with EmbeddedApiServer() as server:
        server.create(config_map(**{KEY: '{"history":[[1,0,0,0,0,0,0]],"gpu_hours":{"ml":5,"old":1}}'}))
        await server.go_offline()
        async with replica(server, "p") as leader:
            await leader.hour(10.0)
            await server.go_online()
            await until(partial(leader.counts, 7.0))


async def test_a_follower_that_takes_over_goes_on_with_what_the_leader_wrote_last() -> None:
    async with EmbeddedApiServer() as server:
        server.create(config_map())
        async with replica(server, "b", leads=False) as other:
            await until(lambda: server.requests)
            async with replica(server, "a") as leader:
                for at in (1.0, 10_000.0):
                    await leader.hour(at)
                await keeps(server, 13_599 / 3600)
                await other.hour(10_000.0)
            await other.hour(20_000.0)
            other.leads = True
            await keeps(server, 23_599 / 3600)


async def test_a_leader_that_ends_writes_what_it_counted_last() -> None:
    async with EmbeddedApiServer() as server:
        server.create(config_map())
        async with replica(server, "a", leads=False, write_seconds=3600) as leader:
            await until(lambda: len(server.requests) == 1)
            leader.leads = True
            await until(lambda: len(server.requests) == 2)
            await leader.hour(1.0)
        await keeps(server, 1.0)


async def test_a_right_that_is_missing_is_one_warning_and_history_is_not_overwritten(
    caplog: pytest.LogCaptureFixture,
) -> None:
    written = '{"history":[],"gpu_hours":{"ml":5}}'
    async with EmbeddedApiServer() as server:
        server.create(config_map(**{KEY: written}))
        server.faults.add(Fault(resources=frozenset({"configmaps"}), status=403))
        async with replica(server, "p") as leader:
            await until(lambda: len(server.requests) > 3)
            await leader.hour(1.0)
        assert kept(server) == written
    assert [record.levelname for record in caplog.records if "history" in record.message] == ["WARNING"]


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
