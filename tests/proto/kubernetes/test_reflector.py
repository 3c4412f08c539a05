import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import pytest
from aiohttp import web

from proto.kubernetes import client
from proto.kubernetes.client import ApiServer
from proto.kubernetes.objects import NODES, PODS, Node, ObjectMeta
from proto.kubernetes.reflector import (
    SETTLED_SECONDS,
    Backoff,
    Interrupted,
    ObjectApplied,
    ObjectRemoved,
    ReflectorPace,
    Replaced,
    Resumed,
    reflect,
)
from tests.proto.kubernetes.scripted_server import (
    Scripted,
    answer,
    connected,
    drop,
    event,
    gone,
    hanging_up,
    node,
    page,
    read_node,
    stream,
    text,
    write_kubeconfig,
)

Change = Replaced[Node] | ObjectApplied[Node] | ObjectRemoved[Node] | Interrupted | Resumed


class Naps:
    """A sleep that takes no time and remembers how long it should have been."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


async def changes(
    api: ApiServer,
    count: int,
    *,
    sleep: Callable[[float], Awaitable[object]] | None = None,
    watch_timeout_seconds: int = 300,
    page_size: int = 500,
) -> list[Change]:
    """The first `count` changes."""
    found: list[Change] = []
    pace = ReflectorPace(
        sleep=sleep or Naps(),
        jitter=lambda: 1.0,
        watch_timeout_seconds=watch_timeout_seconds,
        page_size=page_size,
    )
    nodes = reflect(api, NODES, pace=pace)
    async with asyncio.timeout(60), aclosing(nodes) as stream_of_changes:
        async for change in stream_of_changes:
            found.append(change)
            if len(found) == count:
                break
    return found


def names(found: list[Change]) -> list[str]:
    """Kinds of changes with the names in them, short."""
    words = []
    for change in found:
        match change:
            case Replaced(objects):
                words.append("=" + ",".join(each.metadata.name for each in objects))
            case ObjectApplied(one):
                words.append("+" + one.metadata.name)
            case ObjectRemoved(one):
                words.append("-" + one.metadata.name)
            case Interrupted():
                words.append("!")
            case Resumed():
                words.append("ok")
    return words


async def test_pages_make_one_list_and_the_watch_starts_at_its_moment(server: Scripted, api: ApiServer) -> None:
    server.lists.extend([page(7, node("a", 1), node("b", 2), continue_="next"), page(7, node("c", 3))])
    server.watches.append(server.silence(event("ADDED", node("d", 8)), event("DELETED", node("a", 9))))
    assert await changes(api, 3, page_size=2) == [
        Replaced((read_node("a", 1), read_node("b", 2), read_node("c", 3))),
        ObjectApplied(read_node("d", 8)),
        ObjectRemoved(read_node("a", 9)),
    ]
    assert server.queries("limit", watch=False) == ["2", "2"]
    assert server.queries("continue", watch=False) == [None, "next"]
    assert server.queries("resourceVersion", watch=True) == ["7"]


async def test_pages_of_large_objects_are_read_with_fewer_of_them(
    server: Scripted, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else pods with a megabyte of arguments each would fill the memory of a program that lists them."""
    monkeypatch.setattr(client, "LARGEST_PAGE_BYTES", 20_000)
    sizes = {10: 50_000, **dict.fromkeys(range(20, 30), 6_000)}
    stored = [node(f"n{number}", 1, a="x" * sizes.get(number, 10)) for number in range(40)]

    async def of_stored(request: web.Request) -> web.StreamResponse:
        start, limit = int(request.query.get("continue", "0")), int(request.query["limit"])
        end = start + limit
        return await page(7, *stored[start:end], continue_=str(end) if end < len(stored) else "")(request)

    server.lists.extend([of_stored] * 60)
    async with aclosing(reflect(api, NODES, pace=ReflectorPace(page_size=20))) as stream_of_changes:
        listed = await anext(stream_of_changes)
    assert isinstance(listed, Replaced)
    assert [found.metadata.name for found in listed.objects] == [f"n{number}" for number in range(40)]
    assert len(server.seen) < 30


async def test_a_list_is_held_without_what_is_trimmed_off_its_objects(server: Scripted, api: ApiServer) -> None:
    server.lists.append(page(7, node("a", 1), node("b", 2)))

    def trim(found: Node) -> None:
        found.metadata.resource_version = ""

    async with aclosing(reflect(api, NODES, trim=trim)) as stream_of_changes:
        listed = await anext(stream_of_changes)
    assert listed == Replaced((Node(metadata=ObjectMeta(name="a")), Node(metadata=ObjectMeta(name="b"))))


async def test_selectors_go_with_every_request(server: Scripted, api: ApiServer) -> None:
    server.lists.append(page(7))
    server.watches.append(server.silence(event("ADDED", {"metadata": {"name": "p"}})))
    pods = reflect(api, PODS, field_selector="spec.nodeName=n", label_selector="a=b", namespace="ns")
    async with asyncio.timeout(60), aclosing(pods) as found:
        assert isinstance(await anext(found), Replaced)
        assert isinstance(await anext(found), ObjectApplied)
    assert [(seen.path, seen.query["fieldSelector"], seen.query["labelSelector"]) for seen in server.seen] == [
        ("/api/v1/namespaces/ns/pods", "spec.nodeName=n", "a=b")
    ] * 2


async def test_a_watch_that_ended_in_order_goes_on_at_once_where_it_was(server: Scripted, api: ApiServer) -> None:
    server.lists.append(page(7))
    bookmark = event("BOOKMARK", {"metadata": {"resourceVersion": "20"}})
    server.watches.extend(
        [
            stream(event("ADDED", node("a", 8))),
            stream(event("MODIFIED", node("a", 9)), bookmark),
            server.silence(event("DELETED", node("a", 21))),
        ]
    )
    naps = Naps()
    assert names(await changes(api, 4, sleep=naps)) == ["=", "+a", "+a", "-a"]
    assert server.queries("resourceVersion", watch=True) == ["7", "8", "20"]
    assert naps.seconds == []


async def test_a_watch_that_is_taken_again_is_told_once_although_nothing_changes(
    server: Scripted, api: ApiServer
) -> None:
    server.lists.append(page(7))
    bookmark = event("BOOKMARK", {"metadata": {"resourceVersion": "20"}})
    server.watches.extend(
        [stream(bookmark, then=drop), stream(bookmark, bookmark), server.silence(event("ADDED", node("a", 21)))]
    )
    assert names(await changes(api, 4, sleep=Naps())) == ["=", "!", "ok", "+a"]


async def test_a_dropped_watch_resumes_from_the_newest_version_without_a_list(server: Scripted, api: ApiServer) -> None:
    server.lists.append(page(7))
    server.watches.extend(
        [stream(event("ADDED", node("a", 8)), then=drop), server.silence(event("DELETED", node("a", 9)))]
    )
    naps = Naps()
    found = await changes(api, 5, sleep=naps)
    assert names(found) == ["=", "+a", "!", "ok", "-a"]
    assert server.queries("resourceVersion", watch=True) == ["7", "8"]
    assert naps.seconds == [0.2]
    interrupted = found[2]
    assert isinstance(interrupted, Interrupted)
    assert "cannot be reached" in interrupted.problem
    assert interrupted.retry_in_seconds == 0.2


@pytest.mark.parametrize("as_event", [True, False], ids=["as an event", "as an answer"])
async def test_an_expired_position_is_listed_again_at_once(server: Scripted, api: ApiServer, as_event: bool) -> None:
    server.lists.extend([page(7, node("a", 1)), page(90, node("b", 80))])
    server.watches.append(stream(event("ERROR", gone())) if as_event else answer(410, gone()))
    server.watches.append(server.silence(event("ADDED", node("c", 91))))
    naps = Naps()
    assert names(await changes(api, 3, sleep=naps)) == ["=a", "=b", "+c"]
    assert server.queries("resourceVersion", watch=True) == ["7", "90"]
    assert naps.seconds == []


async def test_positions_that_expire_in_a_row_do_not_become_a_storm(server: Scripted, api: ApiServer) -> None:
    server.lists.extend([page(7)] * 4)
    server.watches.extend([answer(410, gone())] * 3)
    server.watches.append(server.silence(event("ADDED", node("a", 8))))
    naps = Naps()
    assert names(await changes(api, 7, sleep=naps)) == ["=", "=", "!", "=", "!", "=", "+a"]
    assert naps.seconds == [0.4, 0.8]


@pytest.mark.parametrize("ends", [drop, None], ids=["dropped", "ended in order"])
async def test_a_history_that_went_back_is_listed_from_the_start(
    server: Scripted, api: ApiServer, ends: Callable[[web.Request], Awaitable[None]] | None
) -> None:
    """The API server would accept a watch from a version that it has not reached, and send nothing."""
    server.lists.extend([page(700, node("a", 1)), page(90, node("b", 80))])
    server.history_reaches = 90
    server.watches.extend([stream(event("ADDED", node("x", 701)), then=ends)])
    server.watches.append(server.silence(event("ADDED", node("c", 91))))
    found = [word for word in names(await changes(api, 5 if ends else 4)) if word != "!"]
    assert found == ["=a", "+x", "=b", "+c"]
    assert server.queries("resourceVersion", watch=True) == ["700", "90"]


async def test_a_single_object_is_listed_before_each_watch(server: Scripted, api: ApiServer) -> None:
    """Also where the new history is longer than the lost one."""
    server.lists.extend([page(7, node("a", 7)), page(9, node("a", 3))])
    server.watches.append(stream(event("MODIFIED", node("a", 8))))
    async with asyncio.timeout(60), aclosing(reflect(api, NODES, field_selector="metadata.name=a")) as found:
        assert names([await anext(found) for _ in range(3)]) == ["=a", "+a", "=a"]


async def test_a_page_that_expires_starts_the_list_again(server: Scripted, api: ApiServer) -> None:
    server.lists.extend([page(7, node("a", 1), continue_="next"), answer(410, gone()), page(8, node("b", 2))])
    assert names(await changes(api, 1)) == ["=b"]


async def test_delays_double_to_thirty_seconds_and_start_afresh_after_progress(
    server: Scripted, api: ApiServer
) -> None:
    server.lists.extend([*hanging_up, *hanging_up] * 4 + [*hanging_up, page(7)])
    server.watches.extend(
        [stream(event("ADDED", node("a", 8)), then=drop), server.silence(event("ADDED", node("b", 9)))]
    )
    naps = Naps()
    assert names(await changes(api, 14, sleep=naps)) == ["!"] * 9 + ["=", "+a", "!", "ok", "+b"]
    assert naps.seconds == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 0.2]


async def test_a_busy_server_is_left_alone_for_as_long_as_it_asks(server: Scripted, api: ApiServer) -> None:
    server.lists.extend([answer(429, {}, **{"Retry-After": "7"}), answer(503, {}, **{"Retry-After": "600"}), page(7)])
    naps = Naps()
    assert names(await changes(api, 3, sleep=naps)) == ["!", "!", "="]
    assert naps.seconds == [7.0, 30.0]


async def test_refusals_garbage_and_wrong_pages_are_interruptions(server: Scripted, api: ApiServer) -> None:
    forbidden = answer(403, {"reason": "Forbidden", "message": "nodes is forbidden"})
    server.lists.extend([forbidden, text("<html>"), answer(200, {"items": 3}), page(7)])
    server.watches.extend([text("garbage\n"), stream("{}\n"), forbidden, server.silence(event("ADDED", node("a", 8)))])
    found = await changes(api, 10)
    assert names(found) == ["!", "!", "!", "=", "!", "ok", "!", "!", "ok", "+a"]
    assert server.queries("resourceVersion", watch=True) == ["7"] * 4
    assert isinstance(found[0], Interrupted)
    assert found[0].problem == "the API server answered 403 Forbidden: nodes is forbidden"


async def test_watches_that_end_at_once_and_empty_do_not_become_a_storm(server: Scripted, api: ApiServer) -> None:
    server.lists.append(page(7))
    server.watches.extend([stream(), stream(), stream(), server.silence(event("ADDED", node("a", 8)))])
    naps = Naps()
    assert names(await changes(api, 6, sleep=naps)) == ["=", "!", "ok", "!", "ok", "+a"]
    assert naps.seconds == [0.4, 0.8]


async def test_one_unreadable_object_is_left_out_and_the_rest_goes_on(server: Scripted, api: ApiServer) -> None:
    server.lists.append(page(7, node("a", 1), {"metadata": {"name": "bad"}, "status": 3}))
    server.watches.append(
        stream(
            event("MODIFIED", {"metadata": {"name": "bad", "resourceVersion": "8"}, "status": 3}),
            event("ADDED", node("b", 9)),
            then=drop,
        )
    )
    assert names(await changes(api, 3)) == ["=a", "+b", "!"]


@pytest.mark.parametrize("trickle", ["", "\n", '{"type":'], ids=["nothing", "empty lines", "no whole event"])
async def test_a_watch_without_a_whole_event_is_opened_again_where_it_was(server: Scripted, trickle: str) -> None:
    server.lists.append(page(7))
    server.watches.extend(
        [server.trickle(trickle, event("ADDED", node("a", 8))), server.silence(event("ADDED", node("b", 9)))]
    )
    async with connected(server, silent_seconds=0.5) as api:
        found = await changes(api, 3)
    assert names(found) == ["=", "+a", "+b"]
    assert server.queries("resourceVersion", watch=True) == ["7", "8"]


async def test_everything_is_listed_after_a_watch_that_showed_nothing(server: Scripted) -> None:
    """The API server's own watch may be stuck. Bindings and lists then work as before."""
    server.lists.extend([page(7), page(9, node("b", 9))])
    server.watches.extend([server.silence(), server.silence(event("ADDED", node("c", 10)))])
    async with connected(server, silent_seconds=SETTLED_SECONDS) as api:
        assert names(await changes(api, 3)) == ["=", "=b", "+c"]
    assert server.queries("resourceVersion", watch=True) == ["7", "9"]


async def test_events_keep_a_watch_open(server: Scripted) -> None:
    """As long as there is one in time, be it a bookmark."""
    bookmark = event("BOOKMARK", {"metadata": {"resourceVersion": "20"}})

    silent_seconds = 1.0

    async def lively(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(20):
            await response.write(bookmark.encode())
            await asyncio.sleep(silent_seconds / 10)
        await response.write(event("ADDED", node("a", 21)).encode())
        return response

    server.lists.append(page(7))
    server.watches.append(lively)
    async with connected(server, silent_seconds=silent_seconds) as api:
        assert names(await changes(api, 2)) == ["=", "+a"]
    assert server.queries("resourceVersion", watch=True) == ["7"]


async def test_an_api_server_that_comes_back_elsewhere_in_time_is_found_again(server: Scripted) -> None:
    server.lists.append(page(7, node("a", 1)))
    good = server.kubeconfig.read_text()
    write_kubeconfig(server.kubeconfig, "http://127.0.0.1:1")
    async with connected(server) as api:

        async def move(_: float) -> None:
            api.transport.url = good.split('server: "')[1].split('"')[0]

        assert names(await changes(api, 2, sleep=move)) == ["!", "=a"]


async def test_cancelling_the_reader_ends_the_watch(server: Scripted, api: ApiServer) -> None:
    server.lists.append(page(7))
    listed = asyncio.Event()

    async def read() -> None:
        async for _ in reflect(api, NODES):
            listed.set()

    task = asyncio.create_task(read())
    async with asyncio.timeout(60):
        await listed.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_jitter_draws_from_the_upper_half_of_each_delay() -> None:
    low, high = Backoff(lambda: 0.0), Backoff(lambda: 1.0)
    assert [low.next_delay() for _ in range(3)] == [0.1, 0.2, 0.4]
    assert [high.next_delay() for _ in range(3)] == [0.2, 0.4, 0.8]
