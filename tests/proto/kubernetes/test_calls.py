"""Short requests on connections that are kept: raw over real sockets, against a peer that says what it is given to."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from proto.kubernetes.calls import LARGEST_REPLY_BYTES, Calls, Reply
from scheduler_ext.certificates.issue import issue
from tests.scheduler_ext.rig import now

OK = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}"
CREATED = Reply(201, b"{}", "Created")
HEADERS = {"Accept": "application/json", "Authorization": "Bearer t"}


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
            if not answer.endswith((b"{}", b"}")):
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
async def calls(
    peer: Peer, *, most: int = 10, idle_seconds: float = 15.0, path: str = "", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Callable[[], Awaitable[Reply]]]:
    url = f"{'http' if tls is None else 'https'}://127.0.0.1:{peer.port}{path}"
    made = Calls(url, tls or ssl.create_default_context(), None, (), most=most, idle_seconds=idle_seconds)
    try:
        yield lambda: made.send("POST", "/api/v1/x", HEADERS, b'{"a":1}')
    finally:
        made.close()


async def test_a_request_says_what_it_must_and_a_base_path_stands_before_its_own() -> None:
    async with a_peer() as peer, calls(peer, path="/k8s/c-1/") as call:
        assert await call() == CREATED
        assert peer.heard == [
            b"POST /k8s/c-1/api/v1/x HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAccept: application/json\r\n"
            b'Authorization: Bearer t\r\nContent-Length: 7\r\n\r\n{"a":1}' % peer.port
        ]


async def test_one_connection_serves_requests_one_after_the_other_and_more_serve_those_at_once() -> None:
    async with a_peer() as peer, calls(peer, most=3) as call:
        for _ in range(5):
            assert await call() == CREATED
        assert peer.connections == 1
        assert await asyncio.gather(*(call() for _ in range(20))) == [CREATED] * 20
        assert peer.connections == 3


async def test_a_connection_that_was_idle_for_long_is_not_used_again() -> None:
    async with a_peer() as peer, calls(peer, idle_seconds=0.0) as call:
        for _ in range(3):
            await call()
        assert peer.connections == 3


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 201 Created\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.0 201 Created\r\nContent-Length: 2\r\n\r\n{}",
        OK + b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nforged {}",
    ],
)
async def test_a_connection_that_ends_or_says_more_than_it_was_asked_is_not_used_again(answer: bytes) -> None:
    async with a_peer(answer) as peer, calls(peer) as call:
        assert await call() == CREATED
        assert await call() == CREATED
        assert peer.connections == 2


async def test_an_answer_may_come_in_chunks_and_behind_an_interim_one() -> None:
    chunked = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nTransfer-Encoding: chunked\r\n\r\n"
    interim = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    async with a_peer(interim + chunked + b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n") as peer, calls(peer) as call:
        assert await call() == Reply(429, b"{}", "Too Many Requests", "7")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"", "the connection ended before the answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", "the connection ended before the answer"),
        (b"garbage", "the answer cannot be read"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "cannot be read"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nx", "cannot be read"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 9_999_999, "its header is too long"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b" " * 99_999_999, "longer than 16777216 bytes"),
    ],
)
async def test_what_is_no_whole_answer_is_an_error_and_the_next_request_has_another_connection(
    answer: bytes, problem: str
) -> None:
    assert LARGEST_REPLY_BYTES == 16777216
    async with a_peer(answer) as peer, calls(peer) as call:
        with pytest.raises(OSError, match=problem):
            await call()
        assert len(peer.heard) == 1
        assert await call() == CREATED


async def test_who_gives_up_leaves_no_late_answer_to_the_next() -> None:
    async with a_peer(None) as peer, calls(peer, most=1) as call:
        giving_up = asyncio.ensure_future(call())
        await peer.asked.wait()
        giving_up.cancel()
        await asyncio.gather(giving_up, return_exceptions=True)
        assert await call() == CREATED
        assert peer.connections == 2


async def test_nobody_there_and_a_header_of_two_lines_are_errors() -> None:
    async with a_peer() as peer:
        pass
    async with calls(peer) as call:
        with pytest.raises(ConnectionRefusedError):
            await call()
    made = Calls("http://127.0.0.1:1", ssl.create_default_context(), None, (), most=1, idle_seconds=1.0)
    with pytest.raises(OSError, match="line break"):
        await made.send("GET", "/", {"Authorization": "Bearer a\r\nX: y"}, None)


async def test_by_tls_only_whoever_shows_the_certificate_for_the_name_is_asked(tmp_path: Path) -> None:
    for name, value in asdict(issue(frozenset({"127.0.0.1", "api"}), now())).items():
        (tmp_path / name).write_bytes(value)
    shown = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    shown.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
    trust = ssl.create_default_context(cafile=str(tmp_path / "authorities"))
    async with a_peer(tls=shown) as peer:
        async with calls(peer, tls=trust) as call:
            assert await call() == CREATED
        other = ssl.create_default_context()
        for name, tls in (("api", trust), ("elsewhere", trust), ("api", other)):
            made = Calls(f"https://127.0.0.1:{peer.port}", tls, name, (), most=1, idle_seconds=1.0)
            if (name, tls) == ("api", trust):
                assert await made.send("GET", "/", {}, None) == CREATED
            else:
                with pytest.raises(ssl.SSLCertVerificationError):
                    await made.send("GET", "/", {}, None)
            made.close()
        assert len(peer.heard) == 2
