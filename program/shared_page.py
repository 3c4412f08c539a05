"""Pages of text that are written once for all their readers, on a port that any host may reach (edge).

The cost of all callers together is bounded, whatever they read or leave. A page is written on a thread, for a tenth of
the time, and kept compressed. A reader holds one slice of it. Requests and slices take turns, caller after caller, so
that a flood delays no probe.
"""

import asyncio
import logging
import re
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from struct import pack
from weakref import ref

from aiohttp import web
from aiohttp.typedefs import Handler

from program.listening import Patience
from program.tasks import Tasks

SLICE_BYTES = 65_536
"""The most bytes of text in a slice."""

_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
"""The head of a gzip file without name and time (RFC 1952)."""
_RAW = -zlib.MAX_WBITS
_LEVEL = 1


class PackedText:
    """A text, compressed in slices. One after the other they are a gzip file, and none refers to an earlier one."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        """Compresses. It takes long for a long text, and may run on a thread. A slice holds no more than one piece."""
        packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW)
        slices, checksum, self.text_bytes = list[bytes](), 0, 0
        for piece in pieces:
            for start in range(0, len(piece), SLICE_BYTES):
                part = piece[start : start + SLICE_BYTES]
                slices.append(packer.compress(part) + packer.flush(zlib.Z_FULL_FLUSH))
                checksum = zlib.crc32(part, checksum)
                self.text_bytes += len(part)
        slices = slices or [b""]
        slices[0] = _HEAD + slices[0]
        slices[-1] += packer.flush() + pack("<II", checksum, self.text_bytes & 0xFFFF_FFFF)
        self.slices = slices
        self.gzip_bytes = sum(map(len, slices))

    def unpacked(self, number: int) -> bytes:
        """Returns the text of a slice."""
        packed = self.slices[number].removeprefix(_HEAD) if number == 0 else self.slices[number]
        return zlib.decompressobj(_RAW).decompress(packed)


class FairTurns:
    """Gives one turn to each waiting caller, in rotation, at a bounded rate."""

    def __init__(self, *, per_second: float, burst: int) -> None:
        """Both values are above 0; `burst` is how many turns may be taken at once after a pause."""
        self._interval_seconds = 1 / per_second
        self._burst_seconds = burst / per_second
        self._next = -inf
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}
        self._tasks = Tasks()
        self._giving: asyncio.Task[None] | None = None

    async def take(self, caller: Hashable) -> None:
        """Returns when it is the caller's turn. A caller that gives up uses none."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(turn)
        if self._giving is None or self._giving.done():
            self._giving = self._tasks.begin(self._give())
        await turn

    async def end(self) -> None:
        await self._tasks.end()

    async def _give(self) -> None:
        now = asyncio.get_running_loop().time
        while self._waiting:
            caller = next(iter(self._waiting))
            turns = self._waiting.pop(caller)
            turn = turns.popleft()
            if turns:
                self._waiting[caller] = turns
            if turn.done():
                continue
            self._next = max(self._next, now() - self._burst_seconds) + self._interval_seconds
            if self._next > now():
                await asyncio.sleep(self._next - now())
            if not turn.done():
                turn.set_result(None)


log = logging.getLogger(__name__)

PAUSE = 9.0
"""A page is served again for this many times the time it took to write."""
LONGEST_PAUSE_SECONDS = 10.0
TURNS_PER_SECOND = 100.0
TURNS_AT_ONCE = 20
SLICES_IN_TURN = 8
"""A request takes a turn, and another one for each further eight slices of its page."""
MOST_BYTES = 8 * 1024 * 1024
"""The most compressed bytes of a page and the older ones that are still read."""
OPEN = Patience(most_connections=64, arrival_seconds=0.25, kernel_bytes=65_536, gives_up=True)
"""The bounds of such a port. The kernel doubles its part, so readers hold at most 12 MiB besides the pages."""

_GZIP = re.compile(r"\bgzip\b(?!\s*;\s*q=0(\.0*)?\s*(,|$))", re.IGNORECASE)
"""Finds gzip in what a caller accepts. With the weight 0 the caller refuses it (RFC 9110, 12.5.3)."""

Write = Callable[[], Iterable[bytes]]
Look = Callable[[], Awaitable[Write]]
"""Reads the state on the event loop, and returns the function that writes the page on a thread."""
Turn = Callable[[], Awaitable[None]]


class SharedPage:
    """A caller that comes soon after another gets the same page."""

    def __init__(self, content_type: str, look: Look, monotonic: Callable[[], float]) -> None:
        self._content_type = content_type
        self._look = look
        self._monotonic = monotonic
        self._tasks = Tasks()
        self._writing: asyncio.Task[PackedText | None] | None = None
        self._good_until = 0.0
        self._kept: list[ref[PackedText]] = []

    async def end(self) -> None:
        await self._tasks.end()

    async def current(self) -> PackedText | None:
        """Returns the page; None if it could not be written."""
        if self._writing is None or (self._writing.done() and self._monotonic() >= self._good_until):
            self._writing = self._tasks.begin(self._written())
        return await asyncio.shield(self._writing)

    async def answer(self, request: web.Request, turn: Turn) -> web.StreamResponse:
        """Sends the page. It takes further turns for a long one."""
        page = await self.current()
        if page is None:
            return web.Response(status=500, text="the page could not be written; the log has the reason\n")
        is_packed = _GZIP.search(request.headers.get("Accept-Encoding", "")) is not None
        response = web.StreamResponse(headers={"Content-Type": self._content_type, "Vary": "Accept-Encoding"})
        response.content_length = page.gzip_bytes if is_packed else page.text_bytes
        if is_packed:
            response.headers["Content-Encoding"] = "gzip"
        try:
            await response.prepare(request)
            for number in range(0 if request.method == "HEAD" else len(page.slices)):
                if number and number % SLICES_IN_TURN == 0:
                    await turn()
                if not page.slices:
                    raise ConnectionAbortedError("newer pages need the memory")
                await response.write(page.slices[number] if is_packed else page.unpacked(number))
                await request.writer.drain()
        except ConnectionError:
            # The reader has left, or must leave before it has the whole page.
            if request.transport is not None:
                request.transport.abort()
        return response

    async def _written(self) -> PackedText | None:
        began = self._monotonic()
        try:
            write = await self._look()
            began = self._monotonic()
            page = await asyncio.to_thread(lambda: PackedText(write()))
        except Exception:
            log.exception("a page could not be written")
            page = None
        ended = self._monotonic()
        self._good_until = ended + min(PAUSE * (ended - began), LONGEST_PAUSE_SECONDS)
        if page is not None:
            self._keep(page)
        return page

    def _keep(self, page: PackedText) -> None:
        """Empties the oldest of the pages that are still read, as far as memory needs it."""
        older = [each for kept in self._kept if (each := kept()) is not None and each.slices]
        excess = sum(each.gzip_bytes for each in (*older, page)) - MOST_BYTES
        while older and excess > 0:
            excess -= older[0].gzip_bytes
            older.pop(0).slices.clear()
        self._kept = [ref(each) for each in (*older, page)]


def open_port(pages: Mapping[str, SharedPage], probes: Sequence[web.RouteDef]) -> web.Application:
    """Serves pages by path, and probes. It is to be listened to with `OPEN`."""
    turns = FairTurns(per_second=TURNS_PER_SECOND, burst=TURNS_AT_ONCE)

    def turn_of(request: web.Request) -> Turn:
        return partial(turns.take, (request.remote, request.match_info.route.resource))

    @web.middleware
    async def in_turn(request: web.Request, handler: Handler) -> web.StreamResponse:
        await turn_of(request)()
        return await handler(request)

    async def end(_: web.Application) -> None:
        await turns.end()
        for page in pages.values():
            await page.end()

    def answering(page: SharedPage) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            return await page.answer(request, turn_of(request))

        return answer

    application = web.Application(middlewares=[in_turn])
    application.add_routes([*(web.get(path, answering(page)) for path, page in pages.items()), *probes])
    application.on_cleanup.append(end)
    return application
