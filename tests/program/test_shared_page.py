"""A page for many readers, over real sockets."""

import asyncio
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import urlsplit

import aiohttp
import psutil
import pytest
from aiohttp import web

from program import shared_page
from program.listening import serving
from program.shared_page import LONGEST_PAUSE_SECONDS, OPEN, SharedPage, Write, open_port
from tests.program.hostile_clients import MIB

ASKED = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"


def page_of(write: Write, monotonic: Callable[[], float] = time.monotonic) -> SharedPage:
    async def look() -> Write:
        return write

    return SharedPage("text/plain", look, monotonic)


@asynccontextmanager
async def port(write: Write, monotonic: Callable[[], float] = time.monotonic) -> AsyncIterator[str]:
    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    served = open_port({"/metrics": page_of(write, monotonic)}, [web.get("/healthz", healthy)])
    async with serving(served, "127.0.0.1", 0, shutdown_seconds=0.1, patience=OPEN) as (_, number):
        yield f"http://127.0.0.1:{number}"


async def read(url: str, encoding: str = "gzip, deflate") -> tuple[int, bytes]:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as http,
        http.get(url, headers={"Accept-Encoding": encoding}) as answer,
    ):
        return answer.status, await answer.read()


async def test_a_long_page_is_read_whole_packed_and_unpacked() -> None:
    text = b"".join(b"gpus{node=%d} 8\n" % number for number in range(30_000))
    async with port(lambda: [text[:300_000], text[300_000:]]) as url:
        for encoding in ("gzip", "identity"):
            assert await read(f"{url}/metrics", encoding) == (200, text)
            headers = {"Accept-Encoding": encoding}
            async with aiohttp.ClientSession() as http, http.head(f"{url}/metrics", headers=headers) as answer:
                found = answer.status, answer.headers.get("Content-Encoding", "identity"), await answer.read()
            assert found == (200, encoding, b"")


@pytest.mark.parametrize(
    ("accepted", "packed"),
    [
        ("br, GZIP;q=0.5", True),
        ("gzip; q=0.001, *", True),
        ("x-gzip", True),
        ("gzip;q=0", False),
        ("identity, gzip ; q=0.000 , br", False),
        ("*", False),
    ],
)
async def test_a_caller_that_refuses_gzip_gets_plain_text(accepted: str, packed: bool) -> None:
    async with (
        port(lambda: [b"page"]) as url,
        aiohttp.ClientSession() as http,
        http.get(f"{url}/metrics", headers={"Accept-Encoding": accepted}) as answer,
    ):
        assert (answer.headers.get("Content-Encoding") == "gzip", await answer.read()) == (packed, b"page")


async def test_all_who_read_at_once_read_one_page() -> None:
    may_write, written = threading.Event(), list[int]()

    def write() -> Iterator[bytes]:
        may_write.wait()
        written.append(len(written))
        yield b"page %d" % len(written)

    page = page_of(write)
    readers = [asyncio.create_task(page.current()) for _ in range(3)]
    await asyncio.sleep(0)
    may_write.set()
    first, *others = await asyncio.gather(*readers)
    assert first is not None
    assert others == [first, first]
    assert written == [0]


@pytest.mark.parametrize(("took", "pause"), [(0.5, 4.5), (60.0, LONGEST_PAUSE_SECONDS)])
async def test_a_page_is_served_again_for_nine_times_as_long_as_it_took_to_write(took: float, pause: float) -> None:
    now, written = [0.0], list[float]()

    def write() -> Iterator[bytes]:
        written.append(now[0])
        now[0] += took
        yield b"page"

    page = page_of(write, lambda: now[0])
    for asked in (0.0, took, took + pause - 0.1, took + pause):
        now[0] = asked
        await page.current()
    assert written == [0.0, took + pause]


async def test_a_page_that_cannot_be_written_is_one_sentence_to_its_readers(caplog: pytest.LogCaptureFixture) -> None:
    def write() -> Iterator[bytes]:
        raise ValueError("no page")

    async with port(write, lambda: 0.0) as url:
        for _ in range(2):
            answer = await read(f"{url}/metrics")
    assert answer == (500, b"the page could not be written; the log has the reason\n")
    assert [record.message for record in caplog.records] == ["a page could not be written"] * 2


async def test_many_slow_readers_of_a_large_page_hold_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_page, "TURNS_PER_SECOND", 5000.0)
    text = (b"x" * 99 + b"\n") * 40_000
    async with port(lambda: [text]) as url, AsyncExitStack() as stack:
        assert (await read(f"{url}/metrics"))[1] == text
        process = psutil.Process()
        before = process.memory_info().rss
        for _ in range(OPEN.most_connections):
            reader = stack.enter_context(socket.create_connection(("127.0.0.1", urlsplit(url).port or 0)))
            reader.send(ASKED)
            await asyncio.sleep(0)
        for _ in range(5):
            assert (await read(f"{url}/healthz"))[1] == b"ok\n"
            assert process.memory_info().rss - before < 20 * MIB


async def test_a_reader_that_leaves_is_not_an_error(caplog: pytest.LogCaptureFixture) -> None:
    text = os.urandom(4 * MIB)
    async with port(lambda: [text]) as url:
        for taken in (0, 100, 100_000):
            _, number = url.rsplit(":", 1)
            reader, writer = await asyncio.open_connection("127.0.0.1", int(number), limit=4096)
            writer.write(ASKED)
            await reader.read(taken)
            writer.transport.abort()
        assert await read(f"{url}/metrics") == (200, text)
    assert caplog.records == []


async def test_readers_of_old_pages_are_cut_off_before_pages_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_page, "TURNS_PER_SECOND", 5000.0)
    texts = [os.urandom(3 * MIB) for _ in range(4)]
    now, left = [0.0], texts.copy()
    async with port(lambda: [left.pop(0)], lambda: now[0]) as url, AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession(read_bufsize=4096))
        slow = []
        for text in texts:
            slow.append(await http.get(f"{url}/metrics", headers={"Accept-Encoding": "identity"}))
            assert await slow[-1].content.readexactly(1000) == text[:1000]
            now[0] += 60
        for answer in slow[:2]:
            with pytest.raises(aiohttp.ClientError):
                await answer.read()
        assert [1000 + len(await answer.read()) for answer in slow[2:]] == [3 * MIB] * 2


async def test_a_probe_is_answered_while_one_address_reads_on_more_connections_than_there_are() -> None:
    """As if kubelet had the same address."""

    async def flood(number: int) -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", number)
                while True:
                    writer.write(ASKED)
                    await reader.readuntil(b"\r\n\r\npage")
            except (OSError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.01)

    async with port(lambda: [b"page"]) as url:
        readers = [asyncio.create_task(flood(int(url.rsplit(":", 1)[1]))) for _ in range(2 * OPEN.most_connections)]
        try:
            await asyncio.sleep(0.3)
            for _ in range(2):
                async with asyncio.timeout(30):
                    assert await read(f"{url}/healthz") == (200, b"ok\n")
        finally:
            for each in readers:
                each.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
