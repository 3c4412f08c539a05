"""The writer against an API server: one that refuses a part, one that is away, a Node that is made again."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deviceplugin.apiserver import OwnNode
from deviceplugin.changes import Changes
from deviceplugin.node.desired import Desired
from deviceplugin.node.pace import NodePace
from deviceplugin.node.writer import Contributor, NodeWriter
from proto.kubernetes.client import ApiServer
from simulation.apiserver import EmbeddedApiServer, Fault
from tests.deviceplugin.gpus import NODE
from tests.polling import until

NOW = datetime(2030, 1, 1, tzinfo=UTC)
FRESH = NodePace()
NODE_OBJECT = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}


class Wishes:
    """What the Node should have, until a test changes it."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._annotations: dict[str, str | None] = {"a": "1"}
        self.outcomes: list[bool] = []

    def want(self, **annotations: str) -> None:
        self._annotations = dict(annotations)
        self._changes.announce()

    def contributors(self) -> tuple[Contributor, ...]:
        return (
            Contributor(
                name="the annotations",
                desired=lambda _node, _now: Desired(annotations=self._annotations),
                reported=self.outcomes.append,
            ),
            Contributor(name="the totals", desired=lambda _node, _now: Desired(totals={"example.com/gpu": 2})),
        )


@asynccontextmanager
async def writing(
    tmp_path: Path, pace: NodePace = FRESH, **status: Any
) -> AsyncIterator[tuple[EmbeddedApiServer, Wishes]]:
    async with EmbeddedApiServer() as server:
        server.create(NODE_OBJECT | {"status": status})
        (tmp_path / "kubeconfig").write_text(server.kubeconfig())
        api = await ApiServer.connect(str(tmp_path / "kubeconfig"))
        changes = Changes()
        own, wishes = OwnNode(api, NODE, changes), Wishes(changes)
        loops = (own.follow_node(), NodeWriter(own, changes, wishes.contributors(), now=lambda: NOW).run(pace))
        tasks = [asyncio.create_task(loop) for loop in loops]
        yield server, wishes
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await api.close()


def annotations(server: EmbeddedApiServer) -> Mapping[str, str]:
    found: Any = server.store.get("nodes", "", NODE)
    written: Mapping[str, str] = found["metadata"].get("annotations", {})
    return written


def capacity(server: EmbeddedApiServer) -> Mapping[str, str]:
    found: Any = server.store.get("nodes", "", NODE)
    amounts: Mapping[str, str] = found.get("status", {}).get("capacity", {})
    return amounts


async def test_every_part_is_written_and_again_when_the_node_is_made_again(tmp_path: Path) -> None:
    async with writing(tmp_path) as (server, wishes):
        await until(lambda: annotations(server) == {"a": "1"} and capacity(server) == {"example.com/gpu": "2"})
        server.delete("nodes", NODE)
        server.create(NODE_OBJECT)
        await until(lambda: annotations(server) == {"a": "1"} and capacity(server) == {"example.com/gpu": "2"})
        wishes.want(a="2")
        await until(lambda: annotations(server) == {"a": "2"})


async def test_a_part_that_is_refused_is_tried_again_and_keeps_no_other_part_waiting(tmp_path: Path) -> None:
    async with writing(tmp_path) as (server, wishes):
        await until(lambda: wishes.outcomes == [True] and bool(capacity(server)))
        server.inject(Fault(verbs=frozenset({"patch"}), resources=frozenset({"nodes"}), status=403, subresource=""))
        wishes.want(a="2")
        await until(lambda: wishes.outcomes[1:3] == [False, False])
        server.patch("nodes", NODE, {"status": {"capacity": {"example.com/gpu": "0"}}}, subresource="status")
        await until(lambda: capacity(server) == {"example.com/gpu": "2"})
        assert annotations(server) == {"a": "1"}
        server.faults.clear()
        await until(lambda: annotations(server) == {"a": "2"} and wishes.outcomes[-1])


async def test_a_conflict_is_no_failure_and_the_node_is_read_again(tmp_path: Path) -> None:
    async with writing(tmp_path) as (server, wishes):
        await until(lambda: wishes.outcomes == [True])
        server.inject(Fault(verbs=frozenset({"patch"}), resources=frozenset({"nodes"}), status=409, times=1))
        wishes.want(a="2")
        await until(lambda: annotations(server) == {"a": "2"} and wishes.outcomes == [True, True])


async def test_an_api_server_that_returns_ends_the_longest_wait(tmp_path: Path) -> None:
    async with writing(tmp_path, NodePace(retry=3600), capacity={"example.com/gpu": "2"}) as (server, wishes):
        wishes.want()
        await until(lambda: server.open_watches == 1)
        await server.go_offline()
        wishes.want(a="2")
        await until(lambda: wishes.outcomes[-1:] == [False])
        await server.go_online()
        await until(lambda: annotations(server) == {"a": "2"})
