"""HTTP servers for any caller: no client can use up the connections, memory or time that others need (edge).

aiohttp waits without limit for a connection's first request, for the rest of a body, and for a client to read its
answer. asyncio does not count connections whose TLS handshake is unfinished. Here each of these has a time limit. When
there are too many connections, the address with the most of them loses the one that has been idle longest. One that has
just come keeps its place for a moment, for its request; the next ones wait, and the address with the fewest
connections is next.
"""

import asyncio
import logging
import resource
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import cast

from aiohttp import web
from aiohttp.http import HttpProcessingError
from aiohttp.typedefs import Handler

from program.lobby import Lobby
from program.tasks import Tasks

log = logging.getLogger(__name__)
_STRANGERS_MISTAKES = (HttpProcessingError, web.RequestPayloadError)
# They are answered with 400. aiohttp would also log each with a traceback, and any client could fill the log.
log.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], _STRANGERS_MISTAKES)))

MOST_FILES = 65_536
MOST_HEADERS = 32
LONGEST_HEADER = 8190
"""Bytes of the request line, and of each header, such as a bearer token's."""
BACKLOG = 1024
"""Connections that wait in the kernel. A client that finds no place there tries again after seconds."""
_MOST_WAITING = 1024
_FULL_SECONDS = 0.01
_ARRIVAL_PASSES = 10
"""Passes of the event loop in which a connection can send its request, however long the system delays us."""
_BETWEEN_COUNTS = 16
"""Connections that have ended are forgotten when so many have come: to look for them passes all."""
_SHARE_OF_FILES = 8
"""A port's connections may use this part of the files that the process may open."""
_AFTER_FAILED_ACCEPT_SECONDS = 0.2
_BETWEEN_LOOKS_SECONDS = 0.1
"""A connection may be dropped this much late: each look passes all connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Counts the connections of one port."""

    most_connections: int = 256
    header_seconds: float = 10.0
    """The time from the connection to its first request, including the handshake."""
    arrival_seconds: float = 0.1
    """A connection keeps its place for so long, also where others wait."""
    body_seconds: float = 30.0
    """The time from a request's header to the end of its body."""
    answer_seconds: float = 120.0
    """The time from a request's header until the client has read the answer."""
    kernel_bytes: int | None = None
    """The buffer that the kernel has for a connection in each direction; without a value it may be megabytes."""
    gives_up: bool = False
    """True if a request is given up when its client leaves, or when others need its connection."""


@asynccontextmanager
async def serving(
    application: web.Application,
    host: str | None,
    port: int,
    tls: ssl.SSLContext | None = None,
    *,
    shutdown_seconds: float,
    patience: Patience | None = None,
) -> AsyncIterator[tuple[str, int]]:
    """Serves requests and yields their host and port. `host` None means every address. Raises OSError."""
    allow_many_files()
    patience = patience or Patience()
    patience = replace(patience, most_connections=affordable(patience.most_connections, _SHARE_OF_FILES))
    door = _Entrance(patience, tls)
    # What other middlewares do counts as the request's time, too.
    application.middlewares.insert(0, door.note_request)
    runner = web.AppRunner(
        application,
        access_log=None,
        logger=log,
        shutdown_timeout=shutdown_seconds,
        handler_cancellation=patience.gives_up,
        max_line_size=LONGEST_HEADER,
        max_field_size=LONGEST_HEADER,
        max_headers=MOST_HEADERS,
        # A small body that unpacks to a large one would be read before its size is known.
        auto_decompress=False,
    )
    await runner.setup()
    try:
        listeners = await _listeners(host, port, patience.kernel_bytes)
        server = cast("web.Server", runner.server)
        for work in (*(door.accept(listener, server) for listener in listeners), door.admit(server)):
            door.tasks.begin(work)
        try:
            found_host, found_port = listeners[0].getsockname()[:2]
            yield str(found_host), int(found_port)
        finally:
            await door.close()
            for listener in listeners:
                listener.close()
    finally:
        await runner.cleanup()


async def _listeners(host: str | None, port: int, kernel_bytes: int | None) -> list[socket.socket]:
    """Opens one socket for each address of the host. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                listener = socket.socket(family, kind, protocol)
            except OSError:
                continue  # a kernel without IPv6
            listeners.append(listener)
            listener.setblocking(False)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if kernel_bytes is not None:
                # Accepted connections inherit both.
                for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                    listener.setsockopt(socket.SOL_SOCKET, buffer, kernel_bytes)
            listener.bind(address)
            listener.listen(BACKLOG)
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


@dataclass(slots=True, eq=False)
class _Visitor:
    """One connection. `since` is when it connected, sent a request or received an answer last, in monotonic seconds."""

    address: str
    protocol: asyncio.Protocol
    came: float
    came_in: int
    """The pass of the event loop."""
    since: float
    greeting: asyncio.Task[None] | None = None
    """The task that makes its transport, TLS handshake included."""
    transport: asyncio.Transport | None = None
    request: web.Request | None = None
    """The request that is not answered yet."""
    deadline: float = inf
    """The time at which the connection is dropped, by the clock of the event loop."""

    @property
    def is_greeted(self) -> bool:
        return self.greeting is not None and self.greeting.done()

    @property
    def awaits_us(self) -> bool:
        """Returns whether a whole request has arrived, and the client has taken what was answered so far."""
        if self.request is None or not self.request.content.is_eof():
            return False
        transport = self.request.transport
        return transport is None or not transport.get_write_buffer_size()

    def drop(self) -> None:
        if self.greeting is not None:
            self.greeting.cancel()
        if self.transport is not None:
            self.transport.abort()


class _Entrance:
    """Accepts connections and records how long each has been idle."""

    def __init__(self, patience: Patience, tls: ssl.SSLContext | None) -> None:
        self._patience = patience
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._visitors: dict[asyncio.Protocol, _Visitor] = {}
        self._look: asyncio.TimerHandle | None = None
        """The next look for connections past their deadlines. A timer for each request would cost more CPU."""
        self._came = 0
        self._passes = 0
        """Counted where connections are admitted: at least so many."""
        self._lobby = Lobby(affordable(_MOST_WAITING, _SHARE_OF_FILES))
        self.tasks = Tasks()

    async def close(self) -> None:
        await self.tasks.end()
        self._lobby.close()
        if self._look is not None:
            self._look.cancel()

    async def accept(self, listener: socket.socket, server: web.Server) -> None:
        """Accepts until cancelled. Without a handshake, and while there is room, no connection waits in the lobby."""
        while True:
            # It does not yield while connections wait in the kernel.
            await asyncio.sleep(0)
            try:
                connection, address = await self._loop.sock_accept(listener)
            except OSError:
                # No file descriptor is left for it, or the client has closed it already.
                await asyncio.sleep(_AFTER_FAILED_ACCEPT_SECONDS)
                continue
            is_full = len(self._visitors) >= self._patience.most_connections
            if self._tls is None and self._lobby.is_empty and not is_full:
                self._let_in(str(address[0]), connection, server)
            elif not self._lobby.enter(connection, str(address[0])):
                await asyncio.sleep(_FULL_SECONDS / 10)

    async def admit(self, server: web.Server) -> None:
        """Waits until cancelled, one connection at a time, so that others are answered between two handshakes."""
        while True:
            await self._lobby.wait()
            await asyncio.sleep(0)
            self._passes += 1
            address = self._next(server)
            if address is None:
                await asyncio.sleep(_FULL_SECONDS)
                continue
            self._let_in(address, self._lobby.take(address), server)

    def _let_in(self, address: str, connection: socket.socket, server: web.Server) -> None:
        self._came += 1
        if self._came % _BETWEEN_COUNTS == 0:
            self._forget_those_gone(server)
        now = self._loop.time()
        visitor = _Visitor(address, server(), now, self._passes, now)
        self._visitors[visitor.protocol] = visitor
        self._allow(visitor, self._patience.header_seconds)
        visitor.greeting = self.tasks.begin(self._greet(visitor, connection))
        visitor.greeting.add_done_callback(partial(_close_ungreeted, connection))

    def _next(self, server: web.Server) -> str | None:
        """Returns the address that has a place now, if need be after another connection has left."""
        is_full = len(self._visitors) >= self._patience.most_connections
        if is_full:
            self._forget_those_gone(server)
        alone = self._lobby.alone()
        if alone is not None and not is_full:
            return alone
        places = Counter(visitor.address for visitor in self._visitors.values())
        address = self._lobby.next(places)
        return address if self._make_room(address, places) else None

    async def _greet(self, visitor: _Visitor, connection: socket.socket) -> None:
        handshake = None if self._tls is None else self._patience.header_seconds
        try:
            visitor.transport, _ = await self._loop.connect_accepted_socket(
                lambda: visitor.protocol, connection, ssl=self._tls, ssl_handshake_timeout=handshake
            )
        except OSError as error:
            log.debug("cannot accept a connection: %s", error)
            connection.close()

    @web.middleware
    async def note_request(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        visitor = self._visitors.get(request.protocol)
        if visitor is None:
            raise web.HTTPServiceUnavailable
        visitor.request, visitor.since = request, self._loop.time()
        self._allow(visitor, self._patience.body_seconds)
        try:
            answer = await handler(request)
            try:
                await answer.prepare(request)
                await answer.write_eof()
            except ConnectionError:
                pass  # a client that has left is not an error of ours
            return answer
        except web.RequestPayloadError as error:
            raise web.HTTPBadRequest(text=f"$: the body cannot be read: {error}\n") from error
        except ConnectionError as error:
            if request.transport is not None:
                raise
            raise web.HTTPBadRequest from error
        finally:
            visitor.request, visitor.since, visitor.deadline = None, self._loop.time(), inf

    def _allow(self, visitor: _Visitor, seconds: float) -> None:
        visitor.deadline = self._loop.time() + seconds
        if self._look is not None and self._look.when() > visitor.deadline:
            self._look.cancel()
            self._look = None
        if self._look is None:
            self._look = self._loop.call_at(visitor.deadline, self._drop_late)

    def _drop_late(self) -> None:
        """Drops connections past their deadlines. When the whole body has arrived, the rest of the answer's time is
        left.
        """
        now = self._loop.time()
        for visitor in self._visitors.values():
            if now < visitor.deadline:
                continue
            answer_by = visitor.since + self._patience.answer_seconds
            if visitor.request is not None and visitor.request.content.is_eof() and now < answer_by:
                visitor.deadline = answer_by
            else:
                visitor.deadline = inf
                visitor.drop()
        soonest = min((visitor.deadline for visitor in self._visitors.values()), default=inf)
        self._look = None
        if soonest < inf:
            self._look = self._loop.call_at(max(soonest, now + _BETWEEN_LOOKS_SECONDS), self._drop_late)

    def _forget_those_gone(self, server: web.Server) -> None:
        there = set(server.connections)
        for gone in [each for each in self._visitors.values() if each.is_greeted and each.protocol not in there]:
            del self._visitors[gone.protocol]

    def _make_room(self, address: str, places: Mapping[str, int]) -> bool:
        """Returns whether there is a place for the address, if need be after another connection has left."""
        if len(self._visitors) < self._patience.most_connections:
            return True
        visitor = self._next_to_leave(address, places)
        if visitor is None:
            return False
        self._visitors.pop(visitor.protocol).drop()
        return True

    def _next_to_leave(self, address: str, places: Mapping[str, int]) -> _Visitor | None:
        """Returns the idlest connection of the address with the most places. None while that one has just come,
        or when each of them waits for its answer. Where requests may be given up, neither keeps a place from an address
        with fewer.
        """
        gives_up = self._patience.gives_up
        waiting = [visitor for visitor in self._visitors.values() if gives_up or not visitor.awaits_us]
        most = max((places[each.address] for each in waiting), default=0)
        idle = [each for each in waiting if places[each.address] == most]
        if not gives_up or places.get(address, 0) + 1 >= most:
            since = self._loop.time() - self._patience.arrival_seconds
            passes = self._passes - _ARRIVAL_PASSES
            idle = [each for each in idle if each.came <= since and each.came_in <= passes]
        # The request that came last is closed, because the others are answered sooner.
        return min(idle, key=lambda each: (True, -each.since) if each.awaits_us else (False, each.since), default=None)


def _close_ungreeted(connection: socket.socket, greeting: asyncio.Task[None]) -> None:
    """A task that is cancelled before it starts closes nothing."""
    if greeting.cancelled():
        connection.close()


def allow_many_files() -> None:
    """Raises the limit of open files as far as allowed, up to a bound; the usual soft limit is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def affordable(connections: int, share: int) -> int:
    """Returns no more connections than the share, such as an eighth, of the files that the process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return connections if soft == resource.RLIM_INFINITY else max(1, min(connections, soft // share))
