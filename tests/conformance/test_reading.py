"""Lists, their selectors, pages and versions, and watches."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.cluster.peers import Peer
from tests.conformance.objects import MERGE, JsonObject, a_binding, a_pod, names, refused


@pytest.fixture
async def pods(peer: Peer, namespace: str) -> str:
    """Where p0 and p1 (l=x), p2 (l=y) and p3 (no label, bound, running) lie."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    for number, label in enumerate("xxy"):
        await peer.create(path, a_pod(f"p{number}", labels={"l": label}))
    await peer.create(path, a_pod("p3"))
    await peer.create(f"{path}/p3/binding", a_binding("p3"))
    await peer.send("PATCH", f"{path}/p3/status", {"status": {"phase": "Running"}}, MERGE)
    return path


class Watched:
    """A raw watch: what it tells, line by line."""

    def __init__(self, lines: AsyncIterator[bytes]) -> None:
        self._lines = lines

    async def next(self) -> JsonObject:
        async with asyncio.timeout(30):
            event: JsonObject = json.loads(await anext(self._lines))
            return event

    async def told(self) -> tuple[str, str]:
        event = await self.next()
        return event["type"], event["object"]["metadata"]["name"]

    async def rest(self) -> list[tuple[str, str]]:
        return [
            (event["type"], event["object"]["metadata"]["name"])
            async for event in (json.loads(line) async for line in self._lines)
        ]


@asynccontextmanager
async def watching(peer: Peer, path: str, **query: Any) -> AsyncIterator[Watched]:
    parameters = {"watch": "true", "timeoutSeconds": "20"} | {key: str(value) for key, value in query.items()}
    async with peer.http.get(peer.url + path, params=parameters) as response:
        assert response.status == 200, await response.text()
        yield Watched(aiter(response.content))


async def version_of(peer: Peer, path: str) -> str:
    _, listed = await peer.send("GET", path)
    return str(listed["metadata"]["resourceVersion"])


@pytest.mark.parametrize(
    ("query", "chosen"),
    [
        ("labelSelector=l%3Dx", "p0 p1"),
        ("labelSelector=l%3D%3Dx", "p0 p1"),
        ("labelSelector=l!%3Dx", "p2 p3"),
        ("labelSelector=l", "p0 p1 p2"),
        ("labelSelector=!l", "p3"),
        ("labelSelector=l+in+(x,y)", "p0 p1 p2"),
        ("labelSelector=l+notin+(x)", "p2 p3"),
        ("labelSelector=l%3Dx,l!%3Dy", "p0 p1"),
        ("fieldSelector=metadata.name%3Dp1", "p1"),
        ("fieldSelector=metadata.name!%3Dp1", "p0 p2 p3"),
        ("fieldSelector=spec.nodeName%3Dsome-node", "p3"),
        ("fieldSelector=spec.nodeName%3D", "p0 p1 p2"),
        ("fieldSelector=status.phase!%3DPending", "p3"),
        ("fieldSelector=status.phase%3DPending,metadata.name%3Dp0", "p0"),
        ("fieldSelector=spec.schedulerName%3Dnobody&labelSelector=l%3Dy", "p2"),
        ("resourceVersion=0", "p0 p1 p2 p3"),
        ("limit=-1", "p0 p1 p2 p3"),
    ],
)
async def test_a_list_is_chosen_from_by_labels_and_fields(peer: Peer, pods: str, query: str, chosen: str) -> None:
    status, listed = await peer.send("GET", f"{pods}?{query}")
    assert (status, listed["kind"], listed["apiVersion"]) == (200, "PodList", "v1")
    assert names(listed) == chosen.split()


async def test_listed_objects_do_not_repeat_their_kind(peer: Peer, pods: str) -> None:
    _, listed = await peer.send("GET", pods)
    assert all("kind" not in item and "apiVersion" not in item for item in listed["items"])
    _, one = await peer.send("GET", f"{pods}/p0")
    assert (one["kind"], one["apiVersion"]) == ("Pod", "v1")
    _, watched = await peer.send("GET", f"{pods}/p0?watch=true")
    assert watched == one


@pytest.mark.parametrize(
    "query",
    [
        "labelSelector=%3Dbroken%3D",
        "labelSelector=a+in",
        "fieldSelector=spec.nope%3Da",
        "fieldSelector=broken",
        "watch=true&fieldSelector=spec.nope%3Da",
        "limit=many",
        "continue=garbage",
    ],
)
async def test_a_question_that_cannot_be_read_is_a_bad_request(peer: Peer, pods: str, query: str) -> None:
    assert await refused(peer, "GET", f"{pods}?{query}") == (400, "BadRequest", {})


async def test_pages_count_what_remains_unless_something_is_selected(peer: Peer, pods: str) -> None:
    _, page = await peer.send("GET", f"{pods}?limit=2")
    assert (names(page), page["metadata"]["remainingItemCount"]) == (["p0", "p1"], 2)
    _, page = await peer.send("GET", f"{pods}?limit=2&labelSelector=l")
    assert names(page) == ["p0", "p1"]
    assert page["metadata"]["continue"]
    assert "remainingItemCount" not in page["metadata"]


async def test_a_version_that_is_still_to_come_is_waited_for_in_vain(peer: Peer, pods: str) -> None:
    code, reason, details = await refused(peer, "GET", f"{pods}?resourceVersion=99999999")
    assert (code, reason, details["retryAfterSeconds"]) == (504, "Timeout", 1)
    assert details["fields"] == [("", "ResourceVersionTooLarge")]


async def test_a_version_to_match_must_be_named(peer: Peer, pods: str) -> None:
    about = {"kind": "ListOptions", "group": "meta.k8s.io"}
    fields = {"fields": [("resourceVersionMatch", "FieldValueForbidden")]}
    assert await refused(peer, "GET", f"{pods}?resourceVersionMatch=Exact") == (422, "Invalid", about | fields)


async def test_a_list_of_an_exact_version_shows_the_state_of_that_moment(peer: Peer, pods: str) -> None:
    version = await version_of(peer, pods)
    await peer.send("DELETE", f"{pods}/p0")
    await peer.create(pods, a_pod("p9"))
    _, listed = await peer.send("GET", f"{pods}?resourceVersion={version}&resourceVersionMatch=Exact")
    assert (names(listed), listed["metadata"]["resourceVersion"]) == (["p0", "p1", "p2", "p3"], version)


async def test_a_watch_without_a_version_begins_with_what_is_there(peer: Peer, pods: str) -> None:
    async with watching(peer, pods) as watch:
        assert sorted([await watch.told() for _ in range(4)]) == [("ADDED", f"p{number}") for number in range(4)]
        await peer.create(pods, a_pod("p4"))
        assert await watch.told() == ("ADDED", "p4")


async def test_a_watch_tells_what_follows_its_version_in_order(peer: Peer, pods: str) -> None:
    version = await version_of(peer, pods)
    await peer.create(pods, a_pod("p4"))
    await peer.send("PATCH", f"{pods}/p4", {"metadata": {"labels": {"l": "x"}}}, MERGE)
    async with watching(peer, pods, resourceVersion=version) as watch:
        assert [await watch.told(), await watch.told()] == [("ADDED", "p4"), ("MODIFIED", "p4")]
        await peer.send("DELETE", f"{pods}/p4?gracePeriodSeconds=0")
        assert [await watch.told(), await watch.told()] == [("MODIFIED", "p4"), ("DELETED", "p4")]


async def test_objects_enter_and_leave_the_selector_of_a_watch(peer: Peer, pods: str) -> None:
    async with watching(peer, pods, resourceVersion=await version_of(peer, pods), labelSelector="l=x") as watch:
        await peer.send("PATCH", f"{pods}/p2", {"metadata": {"labels": {"l": "x"}}}, MERGE)
        assert await watch.told() == ("ADDED", "p2")
        _, left = await peer.send("PATCH", f"{pods}/p2", {"metadata": {"labels": {"l": "y"}}}, MERGE)
        event = await watch.next()
        assert event["type"] == "DELETED"
        assert event["object"]["metadata"]["labels"] == {"l": "x"}
        assert event["object"]["metadata"]["resourceVersion"] == left["metadata"]["resourceVersion"]


async def test_a_write_that_changes_nothing_is_not_told(peer: Peer, pods: str) -> None:
    async with watching(peer, pods, resourceVersion=await version_of(peer, pods)) as watch:
        await peer.send("PATCH", f"{pods}/p0", {"metadata": {"labels": {"l": "x"}}}, MERGE)
        await peer.send("PATCH", f"{pods}/p1", {"metadata": {"labels": {"l": "z"}}}, MERGE)
        assert await watch.told() == ("MODIFIED", "p1")


async def test_a_watch_ends_when_its_time_is_up(peer: Peer, pods: str) -> None:
    async with watching(peer, pods, resourceVersion=await version_of(peer, pods), timeoutSeconds=1) as watch:
        assert await watch.rest() == []


async def test_a_bookmark_holds_a_version_and_nothing_else(peer: Peer, pods: str) -> None:
    query = {"allowWatchBookmarks": "true", "timeoutSeconds": peer.bookmarked_watch_seconds}
    async with watching(peer, pods, resourceVersion=await version_of(peer, pods), **query) as watch:
        await peer.send("PATCH", f"{pods}/p0", {"metadata": {"labels": {"l": "y"}}}, MERGE)
        assert await watch.told() == ("MODIFIED", "p0")
        event = await watch.next()
    assert (event["type"], event["object"]["kind"], event["object"]["apiVersion"]) == ("BOOKMARK", "Pod", "v1")
    assert int(event["object"]["metadata"]["resourceVersion"]) >= int(await version_of(peer, f"{pods}/p0"))
