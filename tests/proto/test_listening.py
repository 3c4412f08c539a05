"""A port among strangers, over real sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from proto.listening import Patience, serving

HASTY = Patience(most_connections=4, header_seconds=0.3, body_seconds=0.3)
LENIENT = Patience(most_connections=4, header_seconds=60, body_seconds=60)
ASKED = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def port(patience: Patience) -> AsyncIterator[int]:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    application = web.Application()
    application.router.add_route("*", "/", answer)
    async with serving(application, "127.0.0.1", 0, shutdown_seconds=0.1, patience=patience) as (_, number):
        yield number


async def connected(number: int, said: bytes = b"") -> Streams:
    reader, writer = await asyncio.open_connection("127.0.0.1", number)
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


@pytest.mark.parametrize("said", [b"", ASKED])
async def test_among_too_many_the_one_that_was_idle_longest_makes_room(said: bytes) -> None:
    async with port(LENIENT) as number:
        silent = [await connected(number, said) for _ in range(4)]
        for _ in range(8):
            assert await told(await connected(number, ASKED)) == b"HTTP/1.1 200 OK\r\n"
        assert (await silent[0][0].read()).startswith(b"HTTP/1.1 200 OK\r\n" if said else b"")


async def test_a_connection_that_asked_is_kept_between_its_requests() -> None:
    async with port(HASTY) as number:
        reader, writer = await connected(number, ASKED)
        for _ in range(2):
            assert await told((reader, writer)) == b"HTTP/1.1 200 OK\r\n"
            while await reader.readline() != b"\r\n":
                pass
            await asyncio.sleep(2 * HASTY.header_seconds)
            writer.write(ASKED)
