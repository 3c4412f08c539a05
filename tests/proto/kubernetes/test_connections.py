"""Short requests over real sockets, against a peer that answers whatever it is given."""

import asyncio
import gc
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import aiohttp
import pytest

from proto.kubernetes.connections import _IDLE_SECONDS, MOST, Pool
from proto.kubernetes.errors import ApiError, ApiUnreachable
from proto.kubernetes.official import Configuration
from proto.kubernetes.transport import Transport
from scheduler_ext.certificates.issue import issue
from tests.polling import until
from tests.scheduler_ext.rig import now

OK = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}"


@dataclass
class Peer:
    """Answers each request with the next of `answers`; an empty one ends the connection, None is no answer."""

    port: int = 0
    answers: list[bytes | None] = field(default_factory=list)
    heard: list[bytes] = field(default_factory=list)
    connections: int = 0
    asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length: ")]
            body = await reader.readexactly(int(length[0].split()[1])) if length else b""
            self.heard.append(head + body)
            self.asked.set()
            answer = self.answers.pop(0) if self.answers else OK
            if answer is None:
                continue
            writer.write(answer)
            if not answer.endswith((b"{}", b"}")) or b"Connection: close" in answer:
                break
        writer.close()


@asynccontextmanager
async def a_peer(*answers: bytes | None, tls: ssl.SSLContext | None = None) -> AsyncIterator[Peer]:
    peer = Peer(answers=list(answers))
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0, ssl=tls)
    peer.port = server.sockets[0].getsockname()[1]
    try:
        yield peer
    finally:
        server.close()


@asynccontextmanager
async def transport(peer: Peer, *, token: str = "", **settings: object) -> AsyncIterator[Transport]:
    configuration = Configuration()
    configuration.host = f"{'https' if settings else 'http'}://127.0.0.1:{peer.port}"
    configuration.api_key = {"BearerToken": token} if token else {}
    for name, value in settings.items():
        setattr(configuration, name, value)

    async def configure() -> None:
        raise AssertionError("no answer refused the credentials")

    made = Transport(configuration, configure, timeout_seconds=5.0, user_agent="test")
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture(params=[Pool.OTHER, Pool.BINDINGS], ids=lambda pool: pool.name)
def pool(request: pytest.FixtureRequest) -> Pool:
    """aiohttp sends what goes to the one, our own calls what goes to the other."""
    found: Pool = request.param
    return found


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def post(to: Transport, pool: Pool) -> bytes:
    return await to.call("POST", "/api/v1/x", body={"a": 1}, pool=pool)


async def test_one_connection_serves_requests_one_after_the_other(pool: Pool) -> None:
    async with a_peer() as peer, transport(peer) as to:
        for _ in range(5):
            assert await post(to, pool) == b"{}"
        assert peer.connections == 1


async def test_a_redirect_does_not_lead_the_credentials_elsewhere(pool: Pool) -> None:
    moved = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /other\r\nContent-Length: 2\r\n\r\n{}"
    async with a_peer(moved) as peer, transport(peer) as to:
        with pytest.raises(ApiError, match="307"):
            await post(to, pool)
        assert len(peer.heard) == 1


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"", "disconnected|the connection ended before the answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", "not completed|the connection ended before the answer"),
        (b"garbage", "Expected HTTP/"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "Content-Length"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 9_999_999, "more than 8190 bytes|its header is too long"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b" " * 99_999_999, "longer than 16777216 bytes"),
    ],
)
async def test_what_is_no_whole_answer_is_an_error_and_a_write_is_not_repeated(
    answer: bytes, problem: str, pool: Pool
) -> None:
    async with a_peer(answer) as peer, transport(peer) as to:
        with pytest.raises(ApiUnreachable, match=problem):
            await post(to, pool)
        assert len(peer.heard) == 1
        assert await post(to, pool) == b"{}"
        assert peer.connections == 2


async def test_a_write_is_not_repeated_when_a_kept_connection_ends_without_an_answer(pool: Pool) -> None:
    async with a_peer(OK, b"") as peer, transport(peer) as to:
        await post(to, pool)
        with pytest.raises(ApiUnreachable):
            await post(to, pool)
        assert len(peer.heard) == 2


async def test_an_answer_that_nobody_asked_for_is_not_taken_for_the_next_one(pool: Pool) -> None:
    async with a_peer(OK + b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nforged {}") as peer, transport(peer) as to:
        for _ in range(3):
            assert await post(to, pool) == b"{}"


async def test_the_beginning_of_a_second_answer_does_not_change_the_next_one(pool: Pool) -> None:
    async with a_peer(OK + b"HTTP/1.1 404 Not Found\r\nX: {}") as peer, transport(peer) as to:
        assert [await post(to, pool) for _ in range(2)] == [b"{}"] * 2


async def test_who_gives_up_leaves_no_late_answer_to_the_next(pool: Pool) -> None:
    async with a_peer(None) as peer, transport(peer) as to:
        giving_up = asyncio.ensure_future(post(to, pool))
        await peer.asked.wait()
        giving_up.cancel()
        await asyncio.gather(giving_up, return_exceptions=True)
        assert await post(to, pool) == b"{}"
        assert peer.connections == 2


async def test_whoever_gives_up_at_any_moment_of_connecting_leaves_no_socket(pool: Pool) -> None:
    gc.disable()
    try:
        async with a_peer() as peer:
            before = open_files()
            async with transport(peer) as to:
                for turns in range(20):
                    giving_up = asyncio.ensure_future(post(to, pool))
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    giving_up.cancel()
                    await asyncio.gather(giving_up, return_exceptions=True)
            async with asyncio.timeout(5):
                await until(lambda: open_files() <= before)
    finally:
        gc.enable()


async def test_connections_that_were_idle_for_a_while_are_closed(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_IDLE_SECONDS, pool, 0.05)
    async with a_peer() as peer, transport(peer) as to:
        before = open_files()
        await asyncio.gather(*(post(to, pool) for _ in range(10)))
        assert open_files() >= before + 10
        async with asyncio.timeout(5):
            await until(lambda: open_files() <= before)
        assert await post(to, pool) == b"{}"


async def test_calls_of_a_client_that_is_closed_find_the_api_server_unreachable(pool: Pool) -> None:
    async with a_peer(*[None] * 16) as peer, transport(peer) as to:
        calls = [asyncio.ensure_future(to.call("GET", "/x", pool=Pool.EVENTS)) for _ in range(2 * MOST[Pool.EVENTS])]
        calls += [asyncio.ensure_future(post(to, pool)) for _ in range(3)]
        await peer.asked.wait()
        await to.close()
        ended = [*await asyncio.gather(*calls, post(to, pool), return_exceptions=True)]
        async with asyncio.timeout(5):
            with pytest.raises(ApiUnreachable, match="closed"):
                async with to.streaming("/x", timeout=aiohttp.ClientTimeout()):
                    pass
        assert {type(each) for each in ended} == {ApiUnreachable}


async def test_calls_that_wait_when_the_client_is_closed_open_no_connection(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MOST, pool, 2)
    async with a_peer(*[None] * 8) as peer, transport(peer) as to:
        calls = [asyncio.ensure_future(post(to, pool)) for _ in range(8)]
        await peer.asked.wait()
        await to.close()
        ended = await asyncio.gather(*calls, post(to, pool), return_exceptions=True)
        assert {type(each) for each in ended} == {ApiUnreachable}
        assert peer.connections <= 2


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"HTTP/1.0 201 Created\r\nContent-Length: 2\r\n\r\n{}", 201),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK, 201),
        (b"HTTP/1.0 201 Created\r\nConnection: close\r\n\r\n{}", 201),
        (b"HTTP/1.1 099 What\r\nContent-Length: 2\r\n\r\n{}", 99),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n{}", 101),
    ],
)
async def test_old_interim_and_switching_answers_end_one_call_and_no_other(
    answer: bytes, status: int, pool: Pool
) -> None:
    async with a_peer(answer) as peer, transport(peer) as to:
        if status < 200:
            with pytest.raises(ApiError, match=f"answered {status}"):
                await post(to, pool)
        else:
            assert (await post(to, pool)).strip() == b"{}"
        assert await post(to, pool) == b"{}"
        assert len(peer.heard) == 2


async def test_a_long_refusal_is_shortened(pool: Pool) -> None:
    status = b'{"kind": "Status", "message": "%s"}' % (b"x" * 1_000_000)
    answer = b"HTTP/1.1 500 Error\r\nContent-Length: %d\r\n\r\n%s" % (len(status), status)
    async with a_peer(answer) as peer, transport(peer) as to:
        with pytest.raises(ApiError) as caught:
            await post(to, pool)
        assert len(str(caught.value)) < 5000


async def test_a_token_of_two_lines_is_an_error_and_adds_no_header(pool: Pool) -> None:
    async with a_peer() as peer, transport(peer, token="Bearer a\r\nX: y") as to:
        with pytest.raises(ApiUnreachable, match="line break"):
            await post(to, pool)
        assert peer.heard == []


async def test_by_tls_only_whoever_shows_the_certificate_for_the_name_is_asked(tmp_path: Path, pool: Pool) -> None:
    for name, value in asdict(issue(frozenset({"127.0.0.1", "api"}), now())).items():
        (tmp_path / name).write_bytes(value)
    shown = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    shown.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
    trusted = str(tmp_path / "authorities")
    async with a_peer(tls=shown) as peer:
        for name, authorities in (("api.", trusted), ("elsewhere", trusted), ("api", None)):
            async with transport(peer, ssl_ca_cert=authorities, tls_server_name=name) as to:
                if (name, authorities) == ("api.", trusted):
                    assert await post(to, pool) == b"{}"
                else:
                    with pytest.raises(ApiUnreachable, match="certificate"):
                        await post(to, pool)
        assert len(peer.heard) == 1
