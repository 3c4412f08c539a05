"""Oversized and malformed bodies, slow clients and floods, at every port of the extender.

What stops them: limits on bodies, decoders that answer with a sentence, and `program.listening`. Whatever was sent, the
extender answers every other client afterwards, on every port.
"""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from scheduler_ext import webhook_server
from scheduler_ext.http import messages
from simulation.apiserver import EmbeddedApiServer
from tests.builders import node_json, pod_json
from tests.program.hostile_clients import GARBAGE, MALFORMED, MIB, SLOW, hold, sends
from tests.scheduler_ext.admission.pods import container, envelope, pod
from tests.scheduler_ext.extender_process import Extender, extender, prepare

VERBS = ("/filter", "/prioritize", "/prioritize-without-gpus", "/preempt", "/bind")


@asynccontextmanager
async def a_scheduler(folder: Path) -> AsyncIterator[Extender]:
    async with EmbeddedApiServer() as server:
        prepare(server)
        server.create(node_json("a"))
        async with extender(server, folder) as found:
            yield found


async def test_the_verbs_answer_nobody_from_elsewhere_whatever_address_they_listen_on(tmp_path: Path) -> None:
    own = _own_address()
    async with EmbeddedApiServer() as server:
        prepare(server)
        async with extender(server, tmp_path, "--http_bind", "0.0.0.0:0") as found:
            elsewhere = f"http://{own}:{urlsplit(found.verbs).port}"
            for path in (*VERBS, "/debug/snapshot"):
                method = "GET" if path.startswith("/debug") else "POST"
                async with found.http.request(method, elsewhere + path) as response:
                    assert (response.status, (await response.text())[:12]) == (403, "only callers")
            async with found.http.get(f"{elsewhere}/readyz") as response:
                assert response.status == 200


def _own_address() -> str:
    """Of this host, not on loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this host has no address but loopback's")
        address: str = probe.getsockname()[0]
        return address


async def test_a_malformed_body_is_answered_with_a_sentence_on_every_verb(tmp_path: Path) -> None:
    async with a_scheduler(tmp_path) as found:
        for verb in VERBS:
            for body in MALFORMED:
                async with found.http.post(found.verbs + verb, data=body) as response:
                    text = await response.text()
                    assert response.status in (200, 400), (verb, body[:40], text)
                    assert "Traceback" not in text
        for url in (f"{found.metrics}/metrics", f"{found.verbs}/healthz"):
            async with found.http.post(url, data=b"x" * MIB) as response:
                assert response.status == 405
        await found.well()


async def test_a_malformed_question_is_answered_by_the_webhook_with_a_refusal(tmp_path: Path) -> None:
    async with a_scheduler(tmp_path) as found:
        for body in MALFORMED:
            headers = {"Content-Type": "application/json"}
            async with found.http.post(f"{found.webhook}/webhook", data=body, headers=headers) as response:
                answer = json.loads(await response.read())["response"]
                assert (response.status, answer["allowed"]) == (200, False), (body[:40], answer)
        packed = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        async with found.http.post(f"{found.webhook}/webhook", data=b"abcd", headers=packed) as response:
            words = json.loads(await response.read())["response"]["status"]["message"]
            assert words.startswith("the request body is not an AdmissionReview: ")
        await found.well()


async def test_requests_that_are_cut_off_and_long_names_leave_few_and_short_lines(tmp_path: Path) -> None:
    cut = b"POST /webhook HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
    async with a_scheduler(tmp_path) as found:
        before, began = len(found.process.log.read_text()), time.monotonic()
        for _ in range(60):
            writer = await sends(found.webhook, cut)
            assert writer is not None
            writer.transport.abort()
        refused = pod(container(gpu="1", privileged=True))
        refused["metadata"]["name"] = "p" * 900_000
        headers = {"Content-Type": "application/json"}
        async with found.http.post(f"{found.webhook}/webhook", data=envelope(refused), headers=headers) as response:
            assert not json.loads(await response.read())["response"]["allowed"]
        await found.well()
        lines = found.process.log.read_text()[before:].splitlines()
        # At once at most twenty, then one a second; without a limit it is one for each.
        assert len(lines) < 25 + (time.monotonic() - began)
        assert max(map(len, lines)) < 3000


async def test_an_oversized_body_is_refused_before_it_is_held_in_memory(tmp_path: Path) -> None:
    async with a_scheduler(tmp_path) as found:
        limits = {f"{found.verbs}/filter": messages.LARGEST_BODY_BYTES}
        limits |= {f"{found.webhook}/webhook": webhook_server.LARGEST_BODY_BYTES}
        for url, limit in limits.items():
            assert f"larger than {limit} bytes" in await _told_to_endless(found.http, url, limit)
        await found.well()


async def _told_to_endless(http: aiohttp.ClientSession, url: str, limit: int) -> str:
    """What is answered to a body that says of no size, and goes on for twice as long as is allowed."""

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(2 * limit // MIB):
            yield b" " * MIB

    headers = {"Content-Type": "application/json"}
    async with http.post(url, data=endless(), headers=headers) as response:
        assert response.status in (200, 400)
        return await response.text()


async def test_what_is_no_http_at_all_harms_nobody(tmp_path: Path) -> None:
    async with a_scheduler(tmp_path) as found, AsyncExitStack() as stack:
        for url in found.urls:
            for data in GARBAGE:
                await hold(stack, url, data, 1)
        plain = found.webhook.replace("https", "http")
        await hold(stack, plain, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 1)
        await found.well()


async def test_slow_clients_hold_nobody_up(tmp_path: Path) -> None:
    """How many a port lets in, and for how long: tests/program/test_listening.py."""
    async with a_scheduler(tmp_path) as found, AsyncExitStack() as stack:
        for url in found.urls:
            for data in SLOW:
                await hold(stack, url, data, 6)
        async with asyncio.timeout(60):
            await found.well()
            made = found.server.create(pod_json("p"))
            asked = {"Pod": made, "Nodes": None, "NodeNames": ["a"]}
            assert (await found.post("/filter", asked))["NodeNames"] == ["a"]
