"""A peer that says nothing any more, behind a connection that both sides find open."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

from proto.kubernetes.client import OPENING_SECONDS, SILENT_SECONDS, ApiServer, Opened
from proto.kubernetes.connections import DEAD_SECONDS, MOST, Pool
from proto.kubernetes.errors import ApiUnreachable
from proto.kubernetes.objects import EVENTS, NODES, Binding, Event, Node, ObjectMeta, ObjectReference
from proto.kubernetes.reflector import Interrupted, ObjectApplied, ObjectRemoved, Replaced, Resumed, reflect
from tests.polling import until
from tests.proto.kubernetes.scripted_server import Scripted, answer, connected, event, node, page, write_kubeconfig
from tests.relay import Relay

Change = Replaced[Node] | ObjectApplied[Node] | ObjectRemoved[Node] | Interrupted | Resumed


@dataclass
class Behind:
    relay: Relay
    api: ApiServer


@asynccontextmanager
async def behind_a_relay(
    server: Scripted, *, silent_seconds: float = SILENT_SECONDS, timeout_seconds: float = 30.0
) -> AsyncIterator[Behind]:
    async with Relay(server.port) as relay:
        write_kubeconfig(server.kubeconfig, relay.url)
        api = await ApiServer.connect(
            str(server.kubeconfig), timeout_seconds=timeout_seconds, silent_seconds=silent_seconds
        )
        try:
            yield Behind(relay, api)
        finally:
            await api.close()


def test_a_half_open_api_server_is_noticed_within_80_seconds() -> None:
    assert SILENT_SECONDS + OPENING_SECONDS < 80
    assert DEAD_SECONDS < SILENT_SECONDS


async def test_a_watch_whose_connection_is_dead_goes_on_over_another_where_it_was(server: Scripted) -> None:
    server.lists.append(page(7))
    server.watches.extend([server.silence(event("ADDED", node("a", 8))), server.silence(event("ADDED", node("b", 9)))])
    async with (
        asyncio.timeout(60),
        behind_a_relay(server, silent_seconds=0.5) as behind,
        aclosing(reflect(behind.api, NODES)) as changes,
    ):
        assert await anext(changes) == Replaced(())
        first = await anext(changes)
        behind.relay.silence_open()
        second = await anext(changes)
    assert [change.object.metadata.name for change in (first, second) if isinstance(change, ObjectApplied)] == [
        "a",
        "b",
    ]
    assert server.queries("resourceVersion", watch=True)[:2] == ["7", "8"]


async def test_while_no_connection_carries_anything_the_watch_is_interrupted_and_nothing_is_lost(
    server: Scripted,
) -> None:
    server.lists.append(page(7))
    server.watches.extend([server.silence(event("ADDED", node("a", 8))), server.silence(event("ADDED", node("b", 9)))])
    async with (
        asyncio.timeout(60),
        behind_a_relay(server, silent_seconds=0.3, timeout_seconds=0.3) as behind,
        aclosing(reflect(behind.api, NODES)) as changes,
    ):
        found: list[Change] = [await anext(changes), await anext(changes)]
        behind.relay.silence()
        found.append(await anext(changes))
        assert isinstance(found[-1], Interrupted)
        assert "no answer in time" in found[-1].problem
        behind.relay.restore()
        while not isinstance(found[-1], ObjectApplied):
            found.append(await anext(changes))
    assert [type(change) for change in found if not isinstance(change, Interrupted)] == [
        Replaced,
        ObjectApplied,
        Resumed,
        ObjectApplied,
    ]
    assert server.queries("resourceVersion", watch=True)[-1] == "8"


async def test_a_list_that_stops_in_the_middle_of_a_page_is_given_up(server: Scripted) -> None:
    server.lists.append(server.silence('{"metadata":{"resourceVersion":"7"},"items":['))
    async with asyncio.timeout(60), connected(server, timeout_seconds=0.3) as api:
        with pytest.raises(ApiUnreachable, match="cannot be reached"):
            await api.list_page(NODES)


async def test_an_answer_of_which_each_piece_comes_in_time_but_never_the_last_is_given_up(server: Scripted) -> None:
    server.lists.append(server.trickle(" "))
    async with asyncio.timeout(60), connected(server, timeout_seconds=0.3) as api:
        with pytest.raises(ApiUnreachable, match="no answer in time"):
            await api.get(NODES, "a")


async def test_a_refusal_of_a_watch_that_never_ends_is_given_up(server: Scripted) -> None:
    server.watches.append(server.trickle(" ", status=500))
    async with asyncio.timeout(60), connected(server, timeout_seconds=0.3) as api:
        with pytest.raises(ApiUnreachable, match="no answer in time"):
            await anext(api.watch(NODES, resource_version="1"))


async def test_a_handshake_that_never_ends_is_given_up(server: Scripted) -> None:
    """Before TLS as before an answer: the connection is taken, and nothing comes."""
    async with asyncio.timeout(60), Relay(server.port) as relay:
        relay.silence()
        write_kubeconfig(server.kubeconfig, relay.url.replace("http:", "https:"))
        async with connected(server, timeout_seconds=0.3) as api:
            for asked in (api.get(NODES, "a"), api.list_page(NODES), anext(api.watch(NODES, resource_version="1"))):
                with pytest.raises(ApiUnreachable, match="cannot be reached"):
                    await asked


async def test_the_kernel_asks_whether_the_peer_is_still_there(server: Scripted) -> None:
    async with (
        asyncio.timeout(60),
        connected(server) as api,
        aclosing(api.watch(NODES, resource_version="1")) as events,
    ):
        assert await anext(events) == Opened()
        (connection,) = (each for each in psutil.Process().net_connections("tcp") if is_client_of(each, server.port))
        with socket.socket(fileno=os.dup(connection.fd)) as watched:
            asked = [
                watched.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
                watched.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
                watched.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
            ]
    assert asked == [1, 15, 30_000]


def is_client_of(connection: Any, port: int) -> bool:
    return bool(connection.raddr) and connection.raddr.port == port


async def test_bindings_that_wait_hold_up_neither_events_nor_lists_nor_watches(server: Scripted) -> None:
    server.others.extend([server.silence() for _ in range(MOST[Pool.BINDINGS])])
    server.others.append(answer(201, {"metadata": {"name": "e"}, "involvedObject": {}}))
    server.lists.extend([page(7), answer(200, node("a", 1))])
    binding = Binding(metadata=ObjectMeta(name="p", namespace="default"), target=ObjectReference(name="n1"))
    async with asyncio.timeout(120), connected(server, timeout_seconds=100) as api:
        waiting = [asyncio.create_task(api.bind(binding)) for _ in range(MOST[Pool.BINDINGS] + 100)]
        await until(lambda: len(server.seen) == MOST[Pool.BINDINGS])
        event = Event(metadata=ObjectMeta(name="e"), involved_object=ObjectReference(name="p"))
        await api.create(EVENTS, event, namespace="default")
        assert (await api.list_page(NODES)).metadata.resource_version == "7"
        assert (await api.get(NODES, "a")).metadata.name == "a"
        assert await anext(api.watch(NODES, resource_version="7")) == Opened()
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
