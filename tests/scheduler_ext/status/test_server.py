"""The page's server, over real HTTP: what it answers, and to whom it does not."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from proto.annotations import keys
from scheduler_ext.http.server import listening
from scheduler_ext.membership import KUEUE_GROUP, KUEUE_SIZE
from scheduler_ext.running import without_need
from scheduler_ext.status import server as page_server
from scheduler_ext.status.server import PAGE_HEADER, StatusServer
from scheduler_ext.status.view import Poll
from simulation.apiserver import EmbeddedApiServer
from tests.builders import pod_json
from tests.polling import until
from tests.scheduler_ext.rig import ANY_PORT
from tests.scheduler_ext.status.shown import MODELS, Shown, busy_cluster, node, running_pod, shown

FILES = ("", "page.js", "style.css", "icon.svg")


@asynccontextmanager
async def showing(*bodies: dict[str, Any], for_other_hosts: bool = False) -> AsyncIterator[Shown]:
    async with EmbeddedApiServer() as server:
        for body in bodies:
            server.create(body)
        async with shown(server, for_other_hosts=for_other_hosts) as found:
            yield found


class Follower:
    """Reads an event stream."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.seen = ""
        self.head: dict[str, Any] = {}

    async def next(self) -> dict[str, Any]:
        """The next message with something in it."""
        data = ""
        while True:
            line = (await self.response.content.readline()).decode()
            assert line, "the stream ended"
            if line.startswith("id: "):
                self.seen = line[4:].strip()
            if line.startswith("data: "):
                data = line[6:]
            if line == "\n" and data and (value := json.loads(data)):
                found: dict[str, Any] = value
                self.head = found.get("head", self.head)
                return found

    async def until(self, part: str) -> dict[str, Any]:
        while True:
            value = await self.next()
            if value.get(part):
                return value


@asynccontextmanager
async def following(it: Shown, seen: str = "") -> AsyncIterator[Follower]:
    headers = {"Last-Event-ID": seen} if seen else {}
    async with it.rig.http.get(f"{it.page}events", headers=headers) as response:
        assert response.status == 200
        yield Follower(response)


async def test_every_file_comes_from_us_and_nothing_may_come_from_elsewhere() -> None:
    async with showing() as it:
        for file in FILES:
            async with it.rig.http.get(it.page + file) as response:
                assert response.status == 200, file
                policy = response.headers["Content-Security-Policy"]
                assert policy.startswith(
                    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'"
                )
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                text = await response.text()
                assert "<script>" not in text
                assert " style=" not in text
                assert "https://" not in text
        async with it.rig.http.get(f"{it.page}../configuration.py") as response:
            assert response.status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_no_method_writes(method: str) -> None:
    async with showing() as it:
        for path in ("", "events", "page.js"):
            async with it.rig.http.request(method, it.page + path) as response:
                assert response.status == 405


async def test_the_verbs_are_not_served_here() -> None:
    async with showing() as it:
        for path in ("filter", "bind", "debug/snapshot", "metrics"):
            async with it.rig.http.get(it.page + path) as response:
                assert response.status == 404


async def test_another_site_gets_nothing_through_somebodys_browser() -> None:
    async with showing() as it:
        for headers in (
            {"Host": "evil.example"},
            {"Host": "evil.example:80"},
            {"Host": ""},
            {"Host": "["},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
        ):
            for path in ("", "events"):
                async with it.rig.http.get(it.page + path, headers=headers) as response:
                    assert response.status in (400, 403), headers
                    assert "gpu" not in await response.text()
        for host in ("localhost:8001", "127.0.0.1", "[::1]:9396"):
            async with it.rig.http.get(it.page, headers={"Host": host, "Sec-Fetch-Site": "none"}) as response:
                assert response.status == 200


async def test_a_stream_begins_with_everything_and_follows_each_decision() -> None:
    async with showing(*busy_cluster(3), node("idle")) as it, following(it) as follower:
        first = await follower.until("nodes")
        while "idle" not in first["nodes"]:
            first = await follower.until("nodes")
        assert await it.place(pod_json("train", gpus=4, memory_mib=0), "idle") == "idle"
        told: list[dict[str, Any]] = []
        gpus: list[dict[str, Any]] = []
        while [each["what"] for each in told] != ["decided", "bound"] or len(gpus) != 4:
            value = await follower.next()
            told += value.get("happened", [])
            if "idle" in value.get("nodes", {}):
                found = value["nodes"]["idle"]["gpus"]
                gpus = [gpu for gpu in found if gpu.get("held") and "state" not in gpu["held"][0]]
        assert {gpu["held"][0]["pod"] for gpu in gpus} == {"default/train"}
        assert told[0]["gpus"] == [gpu["index"] for gpu in gpus]


async def test_a_pod_that_fits_nowhere_waits_with_what_it_asks_for() -> None:
    async with showing(node("n")) as it, following(it) as follower:
        assert await it.place(pod_json("huge", gpus=16, memory_mib=0), "n") == ""
        while not (found := (await follower.until("waiting"))["waiting"]) or "why" not in found[0]:
            pass
        (waiting,) = found
        assert (waiting["namespace"], waiting["count"], waiting["pods"][0][0]) == ("default", 1, "huge")
        assert waiting["why"]["asks"] == ["container main asks for 16 GPUs with its whole memory each"]
        assert waiting["why"]["sentence"] == "waits: fewer GPUs than asked for (on n)"


async def test_every_pod_that_asks_is_listed_also_unreadable_ones_and_those_of_other_schedulers() -> None:
    bodies = [pod_json("unreadable", memory_mib=0), pod_json("foreign", scheduler_name="other")]
    bodies[0]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = "8Gi"
    for body in bodies:
        body["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    async with showing(node("n"), *bodies) as it, following(it) as follower:
        found: list[dict[str, Any]] = []
        while [each for each in found if "why" in each] != found or len(found) < 2:
            found = (await follower.until("waiting"))["waiting"]
        sentences = {each["pods"][0][0]: each["why"]["sentence"] for each in found}
        assert "so 8 GiB is written 8192; no node fits until the pod is changed" in sentences["unreadable"]
        assert sentences["foreign"].startswith("waits for scheduler other, which has not tried it; its GPUs fit")


async def test_a_stream_continues_where_it_ended() -> None:
    async with showing(node("a"), node("b")) as it:
        async with following(it) as follower:
            value = await follower.until("nodes")
            while not follower.seen or "b" not in value.get("nodes", {}):
                value = await follower.next()
        assert await it.place(pod_json("p", memory_mib=0), "b") == "b"
        async with following(it, follower.seen) as follower:
            value = await follower.until("nodes")
            assert "full" not in value
            assert set(value["nodes"]) == {"b"}


async def test_more_browsers_than_allowed_are_told_so_and_one_that_goes_makes_room() -> None:
    async with showing(node("n")) as it:
        page = {PAGE_HEADER: "1"}
        opened = [await it.rig.http.get(f"{it.page}events", headers=page) for _ in range(page_server.MOST_STREAMS)]
        async with it.rig.http.get(f"{it.page}events", headers=page) as response:
            assert response.status == 503
            assert "browsers show this page already" in await response.text()
            assert response.headers["Connection"] == "close"
        opened.pop().close()

        async def admitted() -> bool:
            async with it.rig.http.get(f"{it.page}events", headers=page) as response:
                return response.status == 200

        await until(admitted)
        for response in opened:
            response.close()


async def test_scripts_that_take_all_streams_they_get_leave_some_for_the_page() -> None:
    async with showing(node("n")) as it:
        opened = [await it.rig.http.get(f"{it.page}events") for _ in range(page_server.MOST_STREAMS)]
        assert sorted({response.status for response in opened}) == [200, 503]
        async with it.rig.http.get(f"{it.page}events", headers={PAGE_HEADER: "1"}) as response:
            assert response.status == 200
        for each in opened:
            each.close()


async def test_an_extender_that_stops_ends_its_streams() -> None:
    async with aiohttp.ClientSession() as http:
        async with showing(node("n")) as it:
            response = await http.get(f"{it.page}events")
            await Follower(response).until("nodes")
        assert (await response.content.read()).endswith(b"\n\n") or response.content.at_eof()


async def test_a_waiting_pod_learns_what_each_node_lacks_and_which_pods_would_have_to_go() -> None:
    whole = MODELS[0][1]
    held = [running_pod(f"p{gpu}", "n", (gpu,), memory_mib=whole, cores=100) for gpu in range(7)]
    async with showing(node("n"), *held) as it, following(it) as follower:
        assert await it.place(pod_json("pair", gpus=2, memory_mib=0), "n") == ""
        while not (found := (await follower.until("waiting"))["waiting"])[0].get("why"):
            pass
        why = found[0]["why"]
        assert why["refused"] == [
            {
                "reason": "too little free memory",
                "nodes": 1,
                "nearest": "n",
                "lacks": "GPU 0: needs 81 559 MiB, 0 free of 81 559",
            }
        ]
        (way,) = why["ways"]
        assert (way["node"], way["count"]) == ("n", 1)
        assert why["less"] == "at most 1 GPU for a container instead of 2"
        fits = follower.head["fits"]
        assert [(row["gpus"], row["whole_pods"], row["whole_pods_if_empty"]) for row in fits] == [
            (1, 1, 8),
            (2, 0, 4),
            (4, 0, 2),
            (8, 0, 1),
        ]


async def test_a_pod_that_fits_on_no_empty_node_is_told_so() -> None:
    async with showing(node("n", gpus=2)) as it, following(it) as follower:
        body = pod_json("odd", memory_mib=0)
        body["metadata"]["annotations"] = {keys.USE_GPU_TYPE: "B200"}
        assert await it.place(body, "n") == ""
        while not (found := (await follower.until("waiting"))["waiting"])[0].get("why"):
            pass
        assert found[0]["why"]["hints"] == [
            "The pod's annotations allow none of the GPUs there are: NVIDIA H100-SXM5-80GB.",
            "Deleting pods does not help: the pod would not fit on an empty node either.",
        ]
        assert "ways" not in found[0]["why"]


async def test_work_of_the_status_page_that_fails_begins_again_and_fails_nothing_else() -> None:
    begun, goes_on = list[int](), asyncio.Event()

    async def work() -> None:
        begun.append(1)
        if len(begun) == 1:
            raise KeyError("a defect")
        goes_on.set()
        await asyncio.Event().wait()

    working = asyncio.create_task(without_need(work, rest_seconds=0))
    await asyncio.wait_for(goes_on.wait(), 60)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    assert len(begun) == 2


async def test_work_of_the_page_that_returns_at_once_rests_before_it_begins_again() -> None:
    begun = []

    async def work() -> None:
        begun.append(1)
        if len(begun) > 3:
            raise asyncio.CancelledError  # else nothing else of this loop would run again

    working = asyncio.create_task(without_need(work, rest_seconds=60))
    await asyncio.sleep(0)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    assert len(begun) == 1


async def test_a_browser_that_does_not_read_is_disconnected() -> None:
    server = StatusServer("p", write_seconds=0.2)
    problems = {f"n{number}": "x" * 100_000 for number in range(200)}  # more than the sockets hold
    async with listening(server.application(), ANY_PORT, "--status-bind-address") as url:
        await server.show(Poll(monotonic=0.0, at=1.0, broken=problems))
        where = urlsplit(url)
        browser = socket.create_connection((where.hostname or "", where.port or 0))
        browser.sendall(f"GET /events HTTP/1.1\r\nHost: {where.netloc}\r\n\r\n".encode())

        async def came() -> bool:
            return server.watched

        async def went() -> bool:
            return not server.watched

        await until(came)
        await until(went)
        browser.close()


async def test_a_member_of_a_group_waits_for_the_same_on_its_page_as_in_explain() -> None:
    member = pod_json("p", memory_mib=0, annotations={KUEUE_SIZE: "9"})
    member["metadata"]["labels"] = {KUEUE_GROUP: "g"}
    async with showing(node("n"), member) as it:
        _, explained = await it.rig.status("/debug/explain?pod=p")
        async with it.rig.http.get(f"{it.page}pod", params={"name": "default/p"}) as answer:
            sentence = (await answer.json())["sentence"]
    assert "group default/g needs 9 pods of 1 GPU; 8 fit" in sentence
    assert sentence == json.loads(explained)["sentence"]
