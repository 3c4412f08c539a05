"""HTTP towards kube-scheduler, raw over real sockets: what both servers answer, and what that of loopback does not."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import psutil
import pytest

from program import listening
from proto.extender import ExtenderError
from scheduler_ext.http import loopback
from scheduler_ext.http.loopback import PortLimits
from scheduler_ext.http.messages import LARGEST_BODY_BYTES, Endpoints, HttpAnswer, HttpRequest, Routes, text_answer
from scheduler_ext.http.server import application
from tests.polling import until

Serve = Callable[[Endpoints], AbstractAsyncContextManager[tuple[str, int]]]
HASTY = PortLimits(most_connections=4, silent_seconds=0.3, request_seconds=0.3)
FEW = PortLimits(most_connections=4)
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

    async def give_up(self, _: HttpRequest) -> HttpAnswer:
        self.asked += 1
        raise asyncio.CancelledError

    async def large(self, _: HttpRequest) -> HttpAnswer:
        return HttpAnswer(b"x" * 64 * MIB)

    async def finish(self) -> None:
        self.held.set()

    def verbs(self) -> Endpoints:
        private: Routes = {
            "/echo": {"POST": self.echo},
            "/wait": {"POST": self.wait},
            "/refuse": {"POST": self.refuse},
            "/fail": {"POST": self.fail},
            "/give-up": {"POST": self.give_up},
            "/large": {"GET": self.large},
        }
        return Endpoints(private=private, public={"/public": {"GET": self.query}}, finish=self.finish)


def by_loopback(verbs: Endpoints, limits: PortLimits | None = None) -> AbstractAsyncContextManager[tuple[str, int]]:
    return loopback.serving(verbs, "127.0.0.1", 0, shutdown_seconds=1.0, limits=limits)


def by_aiohttp(verbs: Endpoints) -> AbstractAsyncContextManager[tuple[str, int]]:
    return listening.serving(application(verbs), "127.0.0.1", 0, shutdown_seconds=1.0)


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


@asynccontextmanager
async def calling(number: int, said: bytes = b"") -> AsyncIterator[Caller]:
    reader, writer = await asyncio.open_connection("127.0.0.1", number)
    writer.write(said)
    try:
        yield Caller(reader, writer)
    finally:
        writer.transport.abort()


def connections(number: int) -> int:
    """How many this process holds that were accepted at the port."""
    held = psutil.Process().net_connections("tcp4")
    return sum(each.laddr.port == number and each.status == psutil.CONN_ESTABLISHED for each in held)


both = pytest.mark.parametrize("serve", [by_loopback, by_aiohttp])


@both
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
async def test_both_servers_give_the_same_answers(serve: Serve, said: bytes, status: int, body: bytes) -> None:
    async with serve(Answering().verbs()) as (_, number), calling(number, said) as caller:
        found, headers, text = await caller.answer()
        assert (found, text.rstrip()) == (status, body.rstrip())
        kinds = ("application/json",) if b"/echo" in said and status == 200 else ("text/plain; charset=utf-8",)
        assert headers["content-type"] in kinds


@both
async def test_a_connection_is_kept_for_any_number_of_requests_in_any_number_of_pieces(serve: Serve) -> None:
    async with serve(Answering().verbs()) as (_, number), calling(number) as caller:
        for body in (b"{}", b"y" * 3 * MIB, b"", b"z"):
            said = sized(body)
            for piece in (said[:7], said[7:40], said[40:60], said[60:]):
                caller.writer.write(piece)
                await caller.writer.drain()
                await asyncio.sleep(0)
            assert (await caller.answer())[2] == body


@pytest.mark.parametrize("head", [b"POST /echo HTTP/1.0\r\n", b"POST /echo HTTP/1.1\r\nConnection: close\r\n"])
async def test_the_only_request_of_a_connection_may_come_in_pieces_too(head: bytes) -> None:
    async with by_loopback(Answering().verbs()) as (_, number), calling(number) as caller:
        for piece in (head[:30], head[30:] + b"Content-Length: 9\r\n\r\n", b"half ", b"done"):
            caller.writer.write(piece)
            await caller.writer.drain()
            await asyncio.sleep(0)
        assert (await caller.rest()).endswith(b"\r\n\r\nhalf done")


@both
async def test_a_head_is_answered_without_a_body(serve: Serve) -> None:
    said = b"HEAD /public HTTP/1.1\r\nHost: a\r\n\r\n"
    async with serve(Answering().verbs()) as (_, number), calling(number, said) as caller:
        status, headers, _ = await caller.answer(has_body=False)
        assert (status, headers["content-length"]) == (200, "4")
        caller.writer.write(GET)
        assert (await caller.answer())[2] == b"- -\n"


@both
@pytest.mark.parametrize(
    "said", [b"GET /public HTTP/1.0\r\n\r\n", GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")]
)
async def test_who_wants_one_answer_only_gets_the_end_behind_it(serve: Serve, said: bytes) -> None:
    async with serve(Answering().verbs()) as (_, number), calling(number, said) as caller:
        assert (await caller.rest()).endswith(b"\r\n\r\n- -\n")


@both
async def test_who_asks_whether_to_go_on_is_told_so(serve: Serve) -> None:
    said = post(b"", b"Content-Length: 3", b"Expect: 100-Continue")
    async with serve(Answering().verbs()) as (_, number), calling(number, said) as caller:
        assert (await caller.answer())[0] == 100
        caller.writer.write(b"abc")
        assert (await caller.answer())[2] == b"abc"


@both
async def test_who_has_said_everything_still_hears_the_answer(serve: Serve) -> None:
    verbs = Answering()
    async with serve(verbs.verbs()) as (_, number):
        said = b"POST /wait HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
        async with calling(number, said) as caller:
            await until(lambda: verbs.asked == 1)
            caller.writer.write_eof()
            await asyncio.sleep(0)
            verbs.held.set()
            heard = await caller.rest()
            # aiohttp takes it for gone.
            assert serve is by_aiohttp or heard.endswith(b"{}")


@both
async def test_what_was_asked_is_done_though_the_caller_is_gone(serve: Serve) -> None:
    verbs = Answering()
    async with serve(verbs.verbs()) as (_, number):
        said = b"POST /wait HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
        async with calling(number, said):
            await until(lambda: verbs.asked == 1)
        verbs.held.set()
        await until(lambda: verbs.done == ["wait"])


@both
async def test_answers_under_way_are_given_before_the_port_closes(serve: Serve) -> None:
    verbs = Answering()
    said = b"POST /wait HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
    port = serve(verbs.verbs())
    _, number = await port.__aenter__()
    async with calling(number, said) as caller, calling(number, GET) as idle:
        await until(lambda: verbs.asked == 1)
        assert (await idle.answer())[0] == 200
        await port.__aexit__(None, None, None)
        assert (await caller.answer())[2] == b"{}"
        assert await idle.rest() == b""
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", number)


@both
async def test_a_fault_of_ours_is_500_and_one_line_for_the_caller(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    said = b"POST /fail HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
    async with serve(Answering().verbs()) as (_, number), calling(number, said) as caller:
        status, _, text = await caller.answer()
        assert status == 500
        assert b"Traceback" not in text
        assert "ZeroDivisionError" in caplog.text


BROKEN: Mapping[str, bytes] = {
    "no method": b"\x00" * 100,
    "a version that does not exist": b"GET / HTTP/9.9\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xff" * 100,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a negative length": post(b"", b"Content-Length: -1"),
    "a length past 64 bits": post(b"", b"Content-Length: 99999999999999999999"),
    "two lengths": post(b"abc", b"Content-Length: 3", b"Content-Length: 2"),
    "a length and chunks": post(b"0\r\n\r\n", b"Content-Length: 5", b"Transfer-Encoding: chunked"),
    "a chunk without a size": post(b"ZZ\r\n", b"Transfer-Encoding: chunked"),
    "a header with a gap": b"GET /public HTTP/1.1\r\nHost : a\r\n\r\n",
    "a folded header": b"GET /public HTTP/1.1\r\nHost: a\r\n b\r\n\r\n",
    "a header with a null": b"GET /public HTTP/1.1\r\nHost: a\x00b\r\n\r\n",
}


@pytest.mark.parametrize("said", BROKEN.values(), ids=BROKEN)
async def test_what_is_no_request_is_400_and_the_end(said: bytes) -> None:
    verbs = Answering()
    async with by_loopback(verbs.verbs()) as (_, number), calling(number, said) as caller:
        assert (await caller.rest()).startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert verbs.asked == 0


@pytest.mark.parametrize(
    "said",
    [
        b"GET /public HTTP/1.1\r\nX: " + b"a" * 10 * MIB,
        b"GET /public HTTP/1.1\r\n" + b"A: b\r\n" * MIB,
        b"GET /" + b"a" * 10 * MIB,
        post(b"1\r\na\r\n0\r\nX: " + b"a" * 10 * MIB, b"Transfer-Encoding: chunked"),
        post(b"1;" + b"a" * 10 * MIB, b"Transfer-Encoding: chunked"),
        post(b"1\r\na\r\n" * MIB, b"Transfer-Encoding: chunked"),
    ],
)
async def test_a_head_without_end_and_what_is_as_useless_is_431(said: bytes) -> None:
    async with by_loopback(Answering().verbs()) as (_, number), calling(number, said) as caller:
        assert (await caller.rest()).startswith(b"HTTP/1.1 431 ")


@both
@pytest.mark.parametrize("chunked", [True, False])
async def test_a_body_without_end_is_refused_and_heard_to_its_end(serve: Serve, *, chunked: bool) -> None:
    size = LARGEST_BODY_BYTES + MIB
    async with serve(Answering().verbs()) as (_, number), calling(number) as caller:
        caller.writer.write(post(b"", b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % size))
        for _ in range(size // MIB):
            caller.writer.write(b"%x\r\n%b\r\n" % (MIB, b" " * MIB) if chunked else b" " * MIB)
            await caller.writer.drain()
        status, _, text = await caller.answer()
        assert (status, text) == (400, b"$: the body is larger than 67108864 bytes\n")


@pytest.mark.parametrize("extra", [GET, sized(b"second") * 3, b"garbage", GET * 100_000])
async def test_who_does_not_wait_for_an_answer_gets_that_one_and_the_end(extra: bytes) -> None:
    verbs = Answering()
    async with by_loopback(verbs.verbs()) as (_, number):
        for pieces in ((sized(b"first") + extra,), (sized(b"first"), extra)):
            async with calling(number) as caller:
                for piece in pieces:
                    caller.writer.write(piece)
                status, _, text = await caller.answer()
                assert (status, text) == (200, b"first")
        async with calling(number, b"POST /wait HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n" + extra) as caller:
            await until(lambda: verbs.asked == 3)
            caller.writer.write(extra)
            await caller.writer.drain()
            verbs.held.set()
            status, headers, text = await caller.answer()
            assert (status, headers["connection"], text) == (200, "close", b"{}")
            assert await caller.rest() == b""


@pytest.mark.parametrize(
    "said",
    [
        b"GET /public HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\nPRI * HTTP/2.0",
        b"CONNECT /public HTTP/1.1\r\nHost: a\r\n\r\n\x16\x03\x01",
    ],
)
async def test_no_other_protocol_is_spoken(said: bytes) -> None:
    async with by_loopback(Answering().verbs()) as (_, number), calling(number, said) as caller:
        heard = await caller.rest()
        assert heard.split(b" ")[1] in (b"200", b"405")
        assert b"\r\nConnection: close\r\n" in heard


@pytest.mark.parametrize(
    "said", [b"", b"G", b"GET /public HTTP/1.1\r\nHost:", post(b"half", b"Content-Length: 9"), b"\r\n"]
)
async def test_who_does_not_go_on_is_dropped(said: bytes) -> None:
    async with by_loopback(Answering().verbs(), HASTY) as (_, number), calling(number, said) as caller:
        assert await caller.rest() == b""


async def test_who_goes_on_a_byte_at_a_time_has_no_more_time_than_others() -> None:
    async with by_loopback(Answering().verbs(), HASTY) as (_, number), calling(number, b"GET /") as caller:

        async def drip() -> None:
            while True:
                caller.writer.write(b"a")
                await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        assert await caller.rest() == b""
        dripping.cancel()


async def test_who_does_not_take_its_answer_is_dropped() -> None:
    async with by_loopback(Answering().verbs(), HASTY) as (_, number):
        with socket.create_connection(("127.0.0.1", number)) as caller:
            caller.send(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
            await until(lambda: connections(number) == 1)
            await until(lambda: connections(number) == 0)


async def test_a_connection_that_asked_is_kept_between_its_requests_and_while_it_waits_for_an_answer() -> None:
    verbs = Answering()
    async with by_loopback(verbs.verbs(), HASTY) as (_, number), calling(number) as caller:
        for _ in range(2):
            caller.writer.write(GET)
            assert (await caller.answer())[0] == 200
            await asyncio.sleep(2 * HASTY.request_seconds)
        caller.writer.write(b"POST /wait HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
        await asyncio.sleep(2 * HASTY.request_seconds)
        verbs.held.set()
        assert (await caller.answer())[2] == b"{}"


@pytest.mark.parametrize("said", [b"", GET])
async def test_among_too_many_the_one_that_was_idle_longest_makes_room(said: bytes) -> None:
    async with by_loopback(Answering().verbs(), FEW) as (_, number):
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        writer.write(said)
        first = Caller(reader, writer)
        if said:
            assert (await first.answer())[0] == 200
        for _ in range(8):
            async with calling(number, GET) as caller:
                assert (await caller.answer())[0] == 200
                others = [await asyncio.open_connection("127.0.0.1", number) for _ in range(3)]
                for _, other in others:
                    other.transport.abort()
        assert await first.rest() == b""


async def test_where_all_are_asking_the_next_is_turned_away_until_one_is_answered() -> None:
    verbs = Answering()
    wait = b"POST /wait HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
    async with by_loopback(verbs.verbs(), FEW) as (_, number):
        callers = [await asyncio.open_connection("127.0.0.1", number) for _ in range(4)]
        for _, writer in callers:
            writer.write(wait)
        await until(lambda: verbs.asked == 4)
        async with calling(number, GET) as caller:
            assert await caller.rest() == b""
        verbs.held.set()
        for reader, writer in callers:
            assert (await Caller(reader, writer).answer())[2] == b"{}"
        async with calling(number, GET) as caller:
            assert (await caller.answer())[0] == 200
        for _, writer in callers:
            writer.transport.abort()


async def test_who_gets_no_answer_learns_it_and_leaves_its_place() -> None:
    verbs = Answering()
    async with by_loopback(verbs.verbs(), FEW) as (_, number):
        for _ in range(2 * FEW.most_connections):
            async with calling(number, b"POST /give-up HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n") as caller:
                assert await caller.rest() == b""
        assert verbs.asked == 2 * FEW.most_connections


async def test_a_thousand_that_wait_leave_room_for_others() -> None:
    verbs = Answering()
    wait = b"POST /wait HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
    async with by_loopback(verbs.verbs()) as (_, number):
        callers = [await asyncio.open_connection("127.0.0.1", number) for _ in range(1000)]
        for _, writer in callers:
            writer.write(wait)
        await until(lambda: verbs.asked == 1000)
        async with calling(number, GET) as caller:
            assert (await caller.answer())[0] == 200
        verbs.held.set()
        for reader, writer in callers:
            assert (await Caller(reader, writer).answer())[2] == b"{}"
            writer.transport.abort()
