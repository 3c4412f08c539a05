"""A port among strangers, over real sockets."""

import asyncio
import gzip
import resource
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from io import BytesIO

import pytest
from aiohttp import web

from program.listening import Patience, affordable, serving
from scheduler_ext.certificates.issue import issue
from scheduler_ext.certificates.tls import KeyPair, ServingTls
from tests.program.hostile_clients import MIB

HASTY = Patience(most_connections=4, header_seconds=0.3, body_seconds=0.3)
LENIENT = Patience(most_connections=4, header_seconds=60, body_seconds=60)
ASKED = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def port(patience: Patience, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    application = web.Application()
    application.router.add_route("*", "/", answer)
    async with serving(application, "127.0.0.1", 0, tls, shutdown_seconds=0.1, patience=patience) as (_, number):
        yield number


async def connected(number: int, said: bytes = b"", source: str = "127.0.0.1") -> Streams:
    reader, writer = await asyncio.open_connection("127.0.0.1", number, local_addr=(source, 0))
    writer.write(said)
    return reader, writer


async def told(streams: Streams) -> bytes:
    """The first line of the answer, empty if the connection ends instead."""
    reader, _ = streams
    try:
        async with asyncio.timeout(60):
            return await reader.readline()
    except ConnectionError:
        return b""


async def test_who_says_nothing_or_half_a_header_is_dropped() -> None:
    async with port(HASTY) as number:
        for said in (b"", b"GET / HTTP/1.1\r\nHost:", b"\x16\x03\x01"):
            assert await told(await connected(number, said)) in (
                b"",
                b"HTTP/1.0 400 Bad Request\r\n",
                b"HTTP/1.1 400 Bad Request\r\n",
            )


async def test_who_does_not_end_a_body_is_dropped() -> None:
    async with port(HASTY) as number:
        assert (
            await told(await connected(number, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf")) == b""
        )


async def test_who_leaves_in_the_middle_of_a_body_is_not_an_error(caplog: pytest.LogCaptureFixture) -> None:
    async with port(LENIENT) as number:
        half = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf"
        for _ in range(3):
            _, writer = await connected(number, half)
            await writer.drain()
            await asyncio.sleep(0.02)
            writer.transport.abort()
        assert await told(await connected(number, ASKED)) == b"HTTP/1.1 200 OK\r\n"
        assert caplog.records == []


@pytest.mark.parametrize("said", [b"", ASKED])
async def test_among_too_many_the_one_that_was_idle_longest_makes_room(said: bytes) -> None:
    async with port(LENIENT) as number:
        silent = [await connected(number, said) for _ in range(4)]
        for _ in range(8):
            assert await told(await connected(number, ASKED)) == b"HTTP/1.1 200 OK\r\n"
        assert (await silent[0][0].read()).startswith(b"HTTP/1.1 200 OK\r\n" if said else b"")


LARGE = 20 * MIB


@asynccontextmanager
async def long_answers(patience: Patience) -> AsyncIterator[tuple[int, list[web.Request]]]:
    """The port, and the requests for an answer that no kernel holds."""
    asked = list[web.Request]()

    async def answer(request: web.Request) -> web.Response:
        asked.append(request)
        return web.Response(body=BytesIO(b"x" * LARGE))

    application = web.Application()
    application.router.add_get("/", answer)
    async with serving(application, "127.0.0.1", 0, shutdown_seconds=0.1, patience=patience) as (_, number):
        yield number, asked


async def test_those_who_do_not_read_their_answers_make_room() -> None:
    async with long_answers(LENIENT) as (number, _):
        slow = [await connected(number, ASKED) for _ in range(4)]
        assert [await told(each) for each in slow] == [b"HTTP/1.1 200 OK\r\n"] * 4
        assert await told(await connected(number, ASKED)) == b"HTTP/1.1 200 OK\r\n"


async def test_who_does_not_read_an_answer_is_dropped() -> None:
    async with long_answers(replace(HASTY, answer_seconds=0.3)) as (number, asked):
        slow = await connected(number, ASKED)
        assert await told(slow) == b"HTTP/1.1 200 OK\r\n"
        async with asyncio.timeout(60):
            while asked[0].transport is not None:  # noqa: ASYNC110 - aiohttp's own
                await asyncio.sleep(0.01)


async def test_a_request_may_be_given_up_when_its_client_leaves() -> None:
    ended = asyncio.Event()

    async def answer(_: web.Request) -> web.Response:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return web.Response()

    application = web.Application()
    application.router.add_get("/", answer)
    patience = replace(LENIENT, gives_up=True)
    async with serving(application, "127.0.0.1", 0, shutdown_seconds=0.1, patience=patience) as (_, number):
        _, writer = await connected(number, ASKED)
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.transport.abort()
        await asyncio.wait_for(ended.wait(), 60)


async def test_where_requests_may_be_given_up_an_address_with_fewer_connections_gets_a_place() -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.remote == "127.0.0.3":
            await asyncio.Event().wait()
        return web.Response()

    application = web.Application()
    application.router.add_get("/", answer)
    patience = replace(LENIENT, gives_up=True, arrival_seconds=3600)
    async with serving(application, "127.0.0.1", 0, shutdown_seconds=0.1, patience=patience) as (_, number):
        for _ in range(20):
            await connected(number, ASKED, source="127.0.0.3")
        for _ in range(2):
            assert await told(await connected(number, ASKED, source="127.0.0.2")) == b"HTTP/1.1 200 OK\r\n"


def test_connections_take_no_more_than_their_share_of_the_files() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert (affordable(1, 8), affordable(soft, 8), affordable(8, 10 * soft)) == (1, soft // 8, 1)


async def test_handshakes_count_as_connections_and_end() -> None:
    """asyncio alone lets in as many of them as there are files."""
    issued = issue(frozenset({"127.0.0.1"}), datetime.now(UTC))  # noqa: TID251 - a real handshake
    tls = ServingTls()
    tls.use(KeyPair(issued.certificate, issued.key))
    async with port(LENIENT, tls.context) as number:
        silent = [await connected(number) for _ in range(12)]
        over = [await told(each) for each in silent[:8]]
        assert over == [b""] * 8
        trusting = ssl.create_default_context(cadata=issued.authorities.decode())
        reader, writer = await asyncio.open_connection("127.0.0.1", number, ssl=trusting)
        writer.write(ASKED)
        assert await told((reader, writer)) == b"HTTP/1.1 200 OK\r\n"
    async with port(HASTY, tls.context) as number:
        assert await told(await connected(number, b"\x16\x03\x01")) == b""


async def test_among_too_many_the_address_that_has_most_makes_room() -> None:
    async with port(LENIENT) as number:
        quiet = await connected(number, ASKED, source="127.0.0.2")
        assert await told(quiet) == b"HTTP/1.1 200 OK\r\n"
        half = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf"
        greedy = [await connected(number, half, source="127.0.0.3") for _ in range(12)]
        assert [await told(each) for each in greedy[:6]] == [b""] * 6
        quiet[1].write(ASKED)
        while (line := await told(quiet)) != b"HTTP/1.1 200 OK\r\n":
            assert line


@pytest.mark.parametrize("header", [b"X-%d: y\r\n" * 40, b"X: " + b"y" * 9000 + b"\r\n"])
async def test_headers_that_no_caller_needs_are_refused(header: bytes) -> None:
    if b"%d" in header:
        header = header % tuple(range(40))
    async with port(LENIENT) as number:
        asked = ASKED.removesuffix(b"\r\n") + header + b"\r\n"
        assert b" 400 " in await told(await connected(number, asked))


async def test_a_packed_body_is_not_unpacked() -> None:
    body = gzip.compress(b"0" * 1_000_000)
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with port(LENIENT) as number:
        reader, writer = await connected(number, head + body)
        assert await told((reader, writer)) == b"HTTP/1.1 200 OK\r\n"
        while await reader.readline() != b"\r\n":
            pass
        assert await reader.readexactly(len(body)) == body


async def test_a_connection_that_asked_is_kept_between_its_requests() -> None:
    async with port(HASTY) as number:
        reader, writer = await connected(number, ASKED)
        for _ in range(2):
            assert await told((reader, writer)) == b"HTTP/1.1 200 OK\r\n"
            while await reader.readline() != b"\r\n":
                pass
            await asyncio.sleep(2 * HASTY.header_seconds)
            writer.write(ASKED)


@pytest.mark.parametrize("storming", [b"", ASKED, b"GET / HTTP/1.1\r\nHost:"])
async def test_among_many_that_come_again_at_once_each_that_asks_is_answered(storming: bytes) -> None:
    """All are of one address, as through `kubectl port-forward`."""

    async def come_again(number: int) -> None:
        while True:
            with suppress(ConnectionError):
                reader, writer = await connected(number, storming)
                while await reader.read(1000):
                    pass
                writer.close()

    async with port(LENIENT) as number:
        storm = [asyncio.create_task(come_again(number)) for _ in range(20)]
        try:
            for _ in range(2):
                assert await told(await connected(number, ASKED)) == b"HTTP/1.1 200 OK\r\n"
        finally:
            for each in storm:
                each.cancel()
            await asyncio.gather(*storm, return_exceptions=True)
