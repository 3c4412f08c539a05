import asyncio
import ssl
import time
from contextlib import aclosing

import pytest
from aiohttp import web

from proto.kubernetes.client import Added, ApiServer, Bookmark, Deleted, Modified, Opened, WatchEvent
from proto.kubernetes.errors import (
    ApiError,
    ApiUnreachable,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
)
from proto.kubernetes.objects import (
    EVENTS,
    NODES,
    PODS,
    Binding,
    Event,
    Node,
    ObjectMeta,
    ObjectReference,
)
from tests.proto.kubernetes.scripted_server import (
    Scripted,
    answer,
    connected,
    drop,
    event,
    gone,
    hang_up,
    node,
    page,
    read_node,
    stream,
    text,
    write_kubeconfig,
)


async def watch_all(api: ApiServer, version: str = "1", timeout_seconds: int = 300) -> list[WatchEvent[Node]]:
    """What comes once the watch is opened."""
    async with aclosing(api.watch(NODES, resource_version=version, timeout_seconds=timeout_seconds)) as events:
        assert await anext(events) == Opened()
        return [found async for found in events]


async def test_a_read_carries_the_credentials_and_says_who_asks(server: Scripted, api: ApiServer) -> None:
    server.lists.append(answer(200, node("n1", 5)))
    assert await api.get(NODES, "n1") == read_node("n1", 5)
    request = server.seen[0]
    assert (request.method, request.path) == ("GET", "/api/v1/nodes/n1")
    assert (request.headers["Authorization"], request.headers["User-Agent"]) == ("Bearer secret", "topogpu")


async def test_for_a_server_without_tls_no_certificate_is_read(
    server: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[object]()
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", read.append)
    await (await ApiServer.connect(str(server.kubeconfig))).close()
    assert read == []


async def test_new_credentials_are_read_when_the_old_ones_are_refused(server: Scripted, api: ApiServer) -> None:
    async def refuse_and_rotate(request: web.Request) -> web.StreamResponse:
        write_kubeconfig(server.kubeconfig, api.url, token="fresh")
        return web.json_response({"code": 401}, status=401)

    server.lists.extend([refuse_and_rotate, answer(200, node("n1", 5))])
    assert await api.get(NODES, "n1") == read_node("n1", 5)
    assert [seen.headers["Authorization"] for seen in server.seen] == ["Bearer secret", "Bearer fresh"]


async def test_a_binding_is_sent_again_with_new_credentials(server: Scripted, api: ApiServer) -> None:
    async def refuse_and_rotate(request: web.Request) -> web.StreamResponse:
        write_kubeconfig(server.kubeconfig, api.url, token="fresh")
        return web.json_response({"code": 401}, status=401)

    server.others.extend([refuse_and_rotate, answer(201, {"kind": "Status"})])
    await api.bind(Binding(metadata=ObjectMeta(name="p", namespace="n"), target=ObjectReference(name="n1")))
    assert [seen.headers["Authorization"] for seen in server.seen] == ["Bearer secret", "Bearer fresh"]


async def test_refused_twice_is_an_error_and_not_a_loop(server: Scripted, api: ApiServer) -> None:
    server.lists.extend([answer(401, {"reason": "Unauthorized", "message": "who are you"})] * 2)
    with pytest.raises(Unauthorized, match="401 Unauthorized: who are you"):
        await api.get(NODES, "n1")


async def test_a_page_asks_for_what_was_given_and_nothing_else(server: Scripted, api: ApiServer) -> None:
    server.lists.append(page(7, node("n1", 5), continue_="more"))
    found = await api.list_page(PODS, namespace="a b", limit=2, field_selector="spec.nodeName=n1", continue_="x=/+")
    assert (found.metadata.resource_version, found.metadata.continue_, len(found.items)) == ("7", "more", 1)
    assert server.seen[0].path == "/api/v1/namespaces/a b/pods"
    assert dict(server.seen[0].query) == {"limit": "2", "fieldSelector": "spec.nodeName=n1", "continue": "x=/+"}


async def test_nulls_count_as_absent(server: Scripted, api: ApiServer) -> None:
    server.lists.append(answer(200, {"metadata": {"resourceVersion": "1"}, "items": None}))
    server.lists.append(answer(200, {"metadata": {"name": "n1", "labels": None, "annotations": None}}))
    assert (await api.list_page(NODES)).items == []
    assert await api.get(NODES, "n1") == Node(metadata=ObjectMeta(name="n1"))


async def test_one_unreadable_object_does_not_take_the_others_down(
    server: Scripted, api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.lists.append(page(7, node("n1", 5), {"metadata": {"name": "bad", "labels": [1]}}, node("n2", 6)))
    assert (await api.list_page(NODES)).items == [read_node("n1", 5), read_node("n2", 6)]
    assert "Node (no name) cannot be read and is left out: Expected `object`, got `array`" in caplog.text


@pytest.mark.parametrize("name", ["..", "."])
async def test_a_name_cannot_walk_the_url(server: Scripted, api: ApiServer, name: str) -> None:
    with pytest.raises(NotFound, match="404"):
        await api.get(PODS, name, "default")
    server.lists.append(answer(404, {}))
    with pytest.raises(NotFound):
        await api.get(PODS, "../x?watch=1", "default")
    assert server.seen[0].raw_path == "/api/v1/namespaces/default/pods/..%2Fx%3Fwatch%3D1"


async def test_a_refusal_carries_the_words_of_the_api_server(server: Scripted, api: ApiServer) -> None:
    server.lists.append(answer(404, {"reason": "NotFound", "message": 'nodes "x" not found', "code": 404}))
    with pytest.raises(NotFound, match=r'^the API server answered 404 NotFound: nodes "x" not found$'):
        await api.get(NODES, "x")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, Invalid),
        (403, Forbidden),
        (405, ApiError),
        (409, Conflict),
        (410, Gone),
        (422, Invalid),
        (429, TooManyRequests),
        (500, ServerError),
        (504, ServerError),
        (520, ServerError),
    ],
)
async def test_a_refusal_is_of_the_class_that_its_status_calls_for(
    server: Scripted, api: ApiServer, status: int, expected: type[ApiError]
) -> None:
    server.lists.append(answer(status, {}))
    with pytest.raises(ApiError) as caught:
        await api.get(NODES, "x")
    assert type(caught.value) is expected


async def test_a_refusal_of_a_proxy_is_shown_short(server: Scripted, api: ApiServer) -> None:
    server.lists.append(text("<html>\n bad gateway" + "x" * 5000, status=502))
    with pytest.raises(ServerError, match=r"502 Bad Gateway: <html> bad gatewayx+$") as caught:
        await api.get(NODES, "x")
    assert len(str(caught.value)) < 300


async def test_a_busy_server_says_how_long_to_wait(server: Scripted, api: ApiServer) -> None:
    server.lists.append(answer(429, {"reason": "TooManyRequests"}, **{"Retry-After": "3"}))
    with pytest.raises(TooManyRequests) as caught:
        await api.get(NODES, "x")
    assert caught.value.retry_after_seconds == 3.0


@pytest.mark.parametrize("body", ["<html>welcome</html>", "", '{"metadata":', "[1]"])
async def test_an_answer_that_is_no_object_is_no_answer(server: Scripted, api: ApiServer, body: str) -> None:
    server.lists.extend([text(body), text(body)])
    with pytest.raises(ApiUnreachable, match="does not answer as an API server"):
        await api.get(NODES, "x")
    with pytest.raises(ApiUnreachable, match="does not answer as an API server"):
        await api.list_page(NODES)


async def test_a_deadline_holds_when_the_answer_is_overdue_in_the_same_turn_of_the_loop(server: Scripted) -> None:
    """As when the machine is busy: by the time anybody looks, both are over."""

    async def never(_: web.Request) -> web.Response:
        await server.closing.wait()
        return web.Response()

    server.lists.append(never)
    async with connected(server, timeout_seconds=0.2) as api:
        asyncio.get_running_loop().call_later(0.1, time.sleep, 0.2)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(api.get(NODES, "n1"), 0.2)


async def test_hanging_up_silence_and_nobody_there_are_told_apart_from_refusals(server: Scripted) -> None:
    async with connected(server) as api:
        server.lists.extend((hang_up, hang_up))  # aiohttp repeats a GET once
        with pytest.raises(ApiUnreachable, match="cannot be reached"):
            await api.get(NODES, "x")
    async with connected(server, timeout_seconds=0.2) as api:
        server.lists.append(server.silence())
        with pytest.raises(ApiUnreachable, match="no answer in time"):
            await api.get(NODES, "x")
    write_kubeconfig(server.kubeconfig, "http://127.0.0.1:1")
    async with connected(server) as api:
        with pytest.raises(ApiUnreachable, match=r"http://127\.0\.0\.1:1 cannot be reached"):
            await api.get(NODES, "x")


async def test_a_patch_is_a_merge_patch(server: Scripted, api: ApiServer) -> None:
    bodies: list[object] = []

    async def keep(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        return web.json_response(node("n1", 6))

    server.others.extend([keep, keep])
    body = {"metadata": {"annotations": {"a": "ü", "b": None}, "resourceVersion": "5"}}
    assert await api.patch(NODES, "n1", body) == read_node("n1", 6)
    await api.patch(NODES, "n1", {"status": {}}, subresource="status")
    assert bodies == [body, {"status": {}}]
    assert [(seen.method, seen.path) for seen in server.seen] == [
        ("PATCH", "/api/v1/nodes/n1"),
        ("PATCH", "/api/v1/nodes/n1/status"),
    ]
    assert server.seen[0].headers["Content-Type"] == "application/merge-patch+json"


async def test_creations_say_their_kind_and_bindings_their_target(server: Scripted, api: ApiServer) -> None:
    bodies: list[object] = []

    async def keep(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        return web.json_response({"metadata": {"name": "e"}, "involvedObject": {}, "kind": "x"}, status=201)

    server.others.extend([keep, keep])
    await api.create(
        EVENTS, Event(metadata=ObjectMeta(name="e"), involved_object=ObjectReference(name="p")), namespace="ns"
    )
    metadata = ObjectMeta(name="p", namespace="ns", uid="u", annotations={"k": "v"})
    await api.bind(Binding(metadata=metadata, target=ObjectReference(name="n1")))
    assert [seen.path for seen in server.seen] == [
        "/api/v1/namespaces/ns/events",
        "/api/v1/namespaces/ns/pods/p/binding",
    ]
    created, bound = bodies
    assert isinstance(created, dict)
    assert [created[key] for key in ("apiVersion", "kind", "type", "count")] == ["v1", "Event", "Normal", 1]
    assert bound == {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p", "namespace": "ns", "uid": "u", "annotations": {"k": "v"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }


async def test_a_watch_yields_typed_events_until_the_server_ends_it(server: Scripted, api: ApiServer) -> None:
    lines = [
        event("ADDED", node("n1", 2)),
        event("MODIFIED", node("n1", 3)),
        event("DELETED", node("n1", 4)),
        event("SOMETHING", node("n1", 4)),
        event("BOOKMARK", {"kind": "Node", "metadata": {"resourceVersion": "9", "creationTimestamp": None}}),
    ]
    joined = "".join(lines)
    server.watches.append(stream(joined[:25], joined[25:], "\n"))
    assert await watch_all(api) == [
        Added(read_node("n1", 2)),
        Modified(read_node("n1", 3)),
        Deleted(read_node("n1", 4)),
        Bookmark("9"),
    ]
    assert dict(server.seen[0].query) == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "1",
        "timeoutSeconds": "300",
    }


async def test_an_unreadable_object_in_a_watch_moves_on_and_can_still_go(server: Scripted, api: ApiServer) -> None:
    bad = {"metadata": {"name": "n1", "resourceVersion": "2"}, "status": []}
    server.watches.append(stream(event("MODIFIED", bad), event("DELETED", bad)))
    assert await watch_all(api) == [Bookmark("2"), Deleted(read_node("n1", 2))]


async def test_an_event_of_a_megabyte_arrives_whole(server: Scripted, api: ApiServer) -> None:
    server.watches.append(stream(event("ADDED", node("n1", 2, big="x" * 5_000_000))))
    (added,) = await watch_all(api)
    assert isinstance(added, Added)
    assert len(added.object.metadata.labels["big"]) == 5_000_000


async def test_an_expired_position_is_410_as_answer_and_as_event(server: Scripted, api: ApiServer) -> None:
    server.watches.extend([answer(410, gone()), stream(event("ERROR", gone()))])
    for _ in range(2):
        with pytest.raises(Gone, match="410 Expired"):
            await watch_all(api)


@pytest.mark.parametrize(
    "lines", [("garbage\n",), ('{"type":"ADDED"}\n',), ("\x00\xff" * 50 + "\n",), (event("ADDED", {})[:-9],)]
)
async def test_garbage_in_a_watch_ends_it(server: Scripted, api: ApiServer, lines: tuple[str, ...]) -> None:
    server.watches.append(stream(event("ADDED", node("n1", 2)), *lines))
    with pytest.raises(ApiUnreachable):
        await watch_all(api)


async def test_a_dropped_watch_is_told(server: Scripted, api: ApiServer) -> None:
    server.watches.append(stream(event("ADDED", node("n1", 2)), then=drop))
    with pytest.raises(ApiUnreachable, match="cannot be reached"):
        await watch_all(api)


async def test_a_watch_that_the_server_does_not_end_in_time_is_ended_here(server: Scripted) -> None:
    async with connected(server, timeout_seconds=1.0) as api, asyncio.timeout(60):
        assert await watch_all(api, timeout_seconds=0) == []
