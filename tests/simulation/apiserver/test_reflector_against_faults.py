"""Our own reflector against an API server that is slow, drops answers, stays silent or forgets."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from proto.kubernetes.client import Added, ApiServer, Opened
from proto.kubernetes.objects import NODES, Node
from proto.kubernetes.reflector import Interrupted, ObjectApplied, ObjectRemoved, ReflectorPace, Replaced, reflect
from simulation.apiserver import EmbeddedApiServer, Fault
from tests.builders import as_json, node
from tests.polling import until

Change = Replaced[Node] | ObjectApplied[Node] | ObjectRemoved[Node] | Interrupted
Changes = AsyncGenerator[Change, None]


class Cluster:
    def __init__(self, server: EmbeddedApiServer, api: ApiServer) -> None:
        self.server, self.api = server, api

    def changes(self, watch_timeout_seconds: int = 300) -> Any:
        return aclosing(reflect(self.api, NODES, pace=ReflectorPace(watch_timeout_seconds=watch_timeout_seconds)))

    def requests(self, verb: str) -> int:
        return sum(request.verb == verb and request.resource == "nodes" for request in self.server.requests)

    async def watching(self, times: int = 1) -> None:
        await until(lambda: self.requests("watch") >= times)


async def following(changes: Changes) -> Change:
    async with asyncio.timeout(60):
        return await anext(changes)


async def seen(changes: Changes, name: str) -> list[Change]:
    """The changes up to and with the one that shows the node."""
    found: list[Change] = []
    while True:
        found.append(change := await following(changes))
        objects = change.objects if isinstance(change, Replaced) else ()
        objects += (change.object,) if isinstance(change, ObjectApplied) else ()
        if any(one.metadata.name == name for one in objects):
            return found


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with EmbeddedApiServer() as server:
        server.create(as_json(node("a", ready=True)))
        config = tmp_path / "kubeconfig"
        config.write_text(server.kubeconfig())
        api = await ApiServer.connect(str(config))
        yield Cluster(server, api)
        await api.close()


async def test_a_slow_answer_is_waited_for(cluster: Cluster) -> None:
    cluster.server.inject(Fault(verbs=frozenset({"list"}), latency_seconds=0.3, times=1))
    began = asyncio.get_running_loop().time()
    async with cluster.changes() as changes:
        assert isinstance(await following(changes), Replaced)
    assert asyncio.get_running_loop().time() - began >= 0.3


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_dropped_list_is_an_interruption_and_asked_again(cluster: Cluster, moment: Any) -> None:
    cluster.server.inject(Fault(verbs=frozenset({"list"}), drop=moment, times=1))
    async with cluster.changes() as changes:
        found = await seen(changes, "a")
    assert [type(change) for change in found] in ([Interrupted, Replaced], [Replaced])
    assert cluster.requests("list") == 2


async def test_a_silent_watch_is_left_and_what_it_hid_is_seen(cluster: Cluster) -> None:
    cluster.server.inject(Fault(verbs=frozenset({"watch"}), stall=True, times=1))
    async with cluster.changes(watch_timeout_seconds=1) as changes:
        await seen(changes, "a")
        waiting = asyncio.create_task(seen(changes, "b"))
        await cluster.watching()
        cluster.server.create(as_json(node("b", ready=True)))
        assert isinstance((await waiting)[-1], Replaced)
    assert cluster.requests("list") == 2


async def test_a_server_restored_from_a_backup_is_listed_from_the_start(cluster: Cluster) -> None:
    async with cluster.changes() as changes:
        await seen(changes, "a")
        backup = cluster.server.store.backup()
        for name in ("lost", "lost-too"):
            cluster.server.create(as_json(node(name, ready=True)))
        await seen(changes, "lost-too")
        await cluster.server.restore(backup)
        cluster.server.create(as_json(node("b", ready=True)))
        listed = (await seen(changes, "b"))[-1]
    assert isinstance(listed, Replaced)
    assert [one.metadata.name for one in listed.objects] == ["a", "b"]


async def test_a_watch_from_a_version_that_is_not_reached_is_accepted_and_silent(cluster: Cluster) -> None:
    """As kube-apiserver's is (kubernetes/kubernetes#107457)."""
    ahead = cluster.server.store.version + 2
    async with aclosing(cluster.api.watch(NODES, resource_version=str(ahead))) as events:
        assert isinstance(await anext(events), Opened)
        for name in ("silent", "silent-too", "shown"):
            cluster.server.create(as_json(node(name, ready=True)))
        event = await anext(events)
        assert isinstance(event, Added)
        assert event.object.metadata.name == "shown"


async def test_after_a_compaction_the_list_is_read_anew(cluster: Cluster) -> None:
    async with cluster.changes() as changes:
        await seen(changes, "a")
        cluster.server.create(as_json(node("b", ready=True)))
        cluster.server.compact()
        assert isinstance((await seen(changes, "b"))[-1], Replaced)
    assert cluster.requests("list") == 2


async def test_a_watch_that_is_only_just_asked_for_is_cut_with_the_others(cluster: Cluster) -> None:
    """A test that hides what happens from now on would otherwise leave this one open."""
    async with cluster.changes() as changes:
        assert isinstance(await following(changes), Replaced)
        next_change = asyncio.create_task(following(changes))
        while not cluster.requests("watch"):  # noqa: ASYNC110 - at the first turn of the loop that can show it
            await asyncio.sleep(0)
        assert cluster.server.drop_watches() == 1
        cluster.server.create(as_json(node("b", ready=True)))
        while not isinstance(change := await next_change, ObjectApplied):
            next_change = asyncio.create_task(following(changes))
        assert change.object.metadata.name == "b"
