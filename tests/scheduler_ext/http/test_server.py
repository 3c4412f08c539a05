"""The answers of kube-scheduler's port, raw over real sockets."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from urllib.parse import urlsplit

import pytest

from program.address import ListenAddress
from proto.extender import ExtenderError
from scheduler_ext.http.messages import Endpoints, HttpAnswer, HttpRequest, Routes, text_answer
from scheduler_ext.http.server import listening_to_kube_scheduler
from tests.polling import until

MIB = 1024 * 1024
GET = b"GET /public HTTP/1.1\r\nHost: a\r\n\r\n"


def post(body: bytes, *headers: bytes) -> bytes:
    return b"POST /echo HTTP/1.1\r\n%b\r\n" % b"".join(b"%b\r\n" % each for each in (b"Host: a", *headers)) + body


def sized(body: bytes, *headers: bytes) -> bytes:
    return post(body, b"Content-Length: %d" % len(body), *headers)


class Answering:
    """Endpoints that return the question they got."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.held = asyncio.Event()
        self.asked = 0

    async def echo(self, asked: HttpRequest) -> HttpAnswer:
        self.asked += 1
        return HttpAnswer(asked.body, afterwards=lambda: self.done.append("echo"))

    async def wait(self, _: HttpRequest) -> HttpAnswer:
        self.asked += 1
        await self.held.wait()
        self.done.append("wait")
        return HttpAnswer(b"{}")

    async def query(self, asked: HttpRequest) -> HttpAnswer:
        return text_answer(f"{asked.query.get('a', '-')} {asked.query.get('b', '-')}")

    async def refuse(self, _: HttpRequest) -> HttpAnswer:
        raise ExtenderError("$.Pod", "missing")

    async def fail(self, _: HttpRequest) -> HttpAnswer:
        raise ZeroDivisionError

    async def finish(self) -> None:
        self.held.set()

    def verbs(self) -> Endpoints:
        private: Routes = {
            "/echo": {"POST": self.echo},
            "/wait": {"POST": self.wait},
            "/refuse": {"POST": self.refuse},
            "/fail": {"POST": self.fail},
        }
        return Endpoints(private=private, public={"/public": {"GET": self.query}}, finish=self.finish)


def opened(verbs: Endpoints) -> AbstractAsyncContextManager[str]:
    return listening_to_kube_scheduler(verbs, ListenAddress(host="127.0.0.1", port=0), "--port")


class Caller:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def answer(self, *, has_body: bool = True) -> tuple[int, dict[str, str], bytes]:
        """Status, headers by lower-case name, body."""
        head = (await self._in_time(self.reader.readuntil(b"\r\n\r\n"))).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        length = int(headers.get("content-length", 0)) if has_body else 0
        return int(head[0].split()[1]), headers, await self._in_time(self.reader.readexactly(length))

    async def rest(self) -> bytes:
        """Until the connection ends, in whatever way."""
        try:
            return await self._in_time(self.reader.read())
        except ConnectionError:
            return b""

    async def _in_time(self, reading: Awaitable[bytes]) -> bytes:
        return await asyncio.wait_for(reading, 60)


def connected(url: str) -> Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    where = urlsplit(url)
    return asyncio.open_connection(where.hostname, where.port)


@asynccontextmanager
async def calling(url: str, said: bytes = b"") -> AsyncIterator[Caller]:
    reader, writer = await connected(url)
    writer.write(said)
    try:
        yield Caller(reader, writer)
    finally:
        writer.transport.abort()


@pytest.mark.parametrize(
    ("said", "status", "body"),
    [
        (sized(b'{"a": 1}'), 200, b'{"a": 1}'),
        (post(b"3\r\nabc\r\n2;ext=1\r\nde\r\n0\r\n\r\n", b"Transfer-Encoding: chunked"), 200, b"abcde"),
        (sized(b""), 200, b""),
        (sized(b"x", b"CONNECTION: Close"), 200, b"x"),
        (GET, 200, b"- -\n"),
        (b"GET /public?a=1&b=%2F&a=2 HTTP/1.1\r\nHost: a\r\n\r\n", 200, b"1 /\n"),
        (b"GET /publi%63 HTTP/1.1\r\nHost: a\r\n\r\n", 200, b"- -\n"),
        (b"\r\nGET /public HTTP/1.1\r\nHost: a\r\n\r\n", 200, b"- -\n"),
        (b"GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n", 404, b"404: Not Found"),
        (b"GET /echo HTTP/1.1\r\nHost: a\r\n\r\n", 405, b"405: Method Not Allowed"),
        (b"DELETE /public HTTP/1.1\r\nHost: a\r\n\r\n", 405, b"405: Method Not Allowed"),
        (b"POST /refuse HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", 400, b"$.Pod: missing\n"),
    ],
)
async def test_a_request_is_answered_by_its_endpoint_or_refused(said: bytes, status: int, body: bytes) -> None:
    async with opened(Answering().verbs()) as url, calling(url, said) as caller:
        found, headers, text = await caller.answer()
        assert (found, text.rstrip()) == (status, body.rstrip())
        kinds = ("application/json",) if b"/echo" in said and status == 200 else ("text/plain; charset=utf-8",)
        assert headers["content-type"] in kinds


async def test_a_connection_is_kept_for_any_number_of_requests_in_any_number_of_pieces() -> None:
    async with opened(Answering().verbs()) as url, calling(url) as caller:
        for body in (b"{}", b"y" * 3 * MIB, b"", b"z"):
            said = sized(body)
            for piece in (said[:7], said[7:40], said[40:60], said[60:]):
                caller.writer.write(piece)
                await caller.writer.drain()
                await asyncio.sleep(0)
            assert (await caller.answer())[2] == body


@pytest.mark.parametrize(
    "head", [b"POST /echo HTTP/1.0\r\n", b"POST /echo HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"]
)
async def test_the_only_request_of_a_connection_may_come_in_pieces_too(head: bytes) -> None:
    async with opened(Answering().verbs()) as url, calling(url) as caller:
        for piece in (head[:30], head[30:] + b"Content-Length: 9\r\n\r\n", b"half ", b"done"):
            caller.writer.write(piece)
            await caller.writer.drain()
            await asyncio.sleep(0)
        assert (await caller.rest()).endswith(b"\r\n\r\nhalf done")


async def test_a_head_is_answered_without_a_body() -> None:
    said = b"HEAD /public HTTP/1.1\r\nHost: a\r\n\r\n"
    async with opened(Answering().verbs()) as url, calling(url, said) as caller:
        status, headers, _ = await caller.answer(has_body=False)
        assert (status, headers["content-length"]) == (200, "4")
        caller.writer.write(GET)
        assert (await caller.answer())[2] == b"- -\n"


@pytest.mark.parametrize(
    "said", [b"GET /public HTTP/1.0\r\n\r\n", GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")]
)
async def test_who_wants_one_answer_only_gets_the_end_behind_it(said: bytes) -> None:
    async with opened(Answering().verbs()) as url, calling(url, said) as caller:
        assert (await caller.rest()).endswith(b"\r\n\r\n- -\n")


async def test_who_asks_whether_to_go_on_is_told_so() -> None:
    said = post(b"", b"Content-Length: 3", b"Expect: 100-Continue")
    async with opened(Answering().verbs()) as url, calling(url, said) as caller:
        assert (await caller.answer())[0] == 100
        caller.writer.write(b"abc")
        assert (await caller.answer())[2] == b"abc"


async def test_what_was_asked_is_done_though_the_caller_is_gone() -> None:
    verbs = Answering()
    async with opened(verbs.verbs()) as url:
        said = b"POST /wait HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
        async with calling(url, said):
            await until(lambda: verbs.asked == 1)
        verbs.held.set()
        await until(lambda: verbs.done == ["wait"])


async def test_answers_under_way_are_given_before_the_port_closes() -> None:
    verbs = Answering()
    said = b"POST /wait HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
    port = opened(verbs.verbs())
    url = await port.__aenter__()
    async with calling(url, said) as caller, calling(url, GET) as idle:
        await until(lambda: verbs.asked == 1)
        assert (await idle.answer())[0] == 200
        await port.__aexit__(None, None, None)
        assert (await caller.answer())[2] == b"{}"
        assert await idle.rest() == b""
    with pytest.raises(ConnectionRefusedError):
        await connected(url)


async def test_a_fault_of_ours_is_500_and_one_line_for_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    said = b"POST /fail HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
    async with opened(Answering().verbs()) as url, calling(url, said) as caller:
        status, _, text = await caller.answer()
        assert status == 500
        assert b"Traceback" not in text
        assert "ZeroDivisionError" in caplog.text


async def test_a_thousand_that_wait_leave_room_for_others() -> None:
    verbs = Answering()
    wait = b"POST /wait HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
    async with opened(verbs.verbs()) as url:
        callers = [await connected(url) for _ in range(1000)]
        for _, writer in callers:
            writer.write(wait)
        await until(lambda: verbs.asked == 1000)
        async with calling(url, GET) as caller:
            assert (await caller.answer())[0] == 200
        verbs.held.set()
        for reader, writer in callers:
            assert (await Caller(reader, writer).answer())[2] == b"{}"
            writer.transport.abort()
