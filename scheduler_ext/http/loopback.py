"""Serves HTTP/1.1 to kube-scheduler on the same host with half of aiohttp's CPU time (edge).

It is for loopback alone; aiohttp behind `program.listening` serves other addresses. Each connection carries one request
after the other, each read whole. It serves only what kube-scheduler does. A caller that sends more before its answer is
there gets that answer, and the connection ends.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from program.listening import affordable, allow_many_files
from program.tasks import Tasks
from scheduler_ext.http.messages import (
    LARGEST_BODY_BYTES,
    Endpoints,
    HttpAnswer,
    HttpRequest,
    answered,
    is_local,
    routed,
    text_answer,
    too_large,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PortLimits:
    """Bounds on the connections and requests of one port."""

    most_connections: int = 4096
    head_bytes: int = 65_536
    """Largest size of a request without its body. One further read of at most 256 KiB may exceed it."""
    silent_seconds: float = 10.0
    """The most seconds from the connection to the first byte of its first request."""
    request_seconds: float = 30.0
    """The most seconds from a request's first byte to its last, for the caller to take the answer, and for a connection
    to end.
    """


@asynccontextmanager
async def serving(
    endpoints: Endpoints, host: str | None, port: int, *, shutdown_seconds: float, limits: PortLimits | None = None
) -> AsyncIterator[tuple[str, int]]:
    """Yields host and port where requests are served. Raises OSError."""
    allow_many_files()
    limits = limits or PortLimits()
    limits = replace(limits, most_connections=affordable(limits.most_connections, 2))
    door, loop = _Door(endpoints, limits), asyncio.get_running_loop()
    listener = await loop.create_server(lambda: _Connection(door), host, port, backlog=1024)
    try:
        found_host, found_port = listener.sockets[0].getsockname()[:2]
        yield str(found_host), int(found_port)
    finally:
        listener.close()
        await endpoints.finish()
        await door.close(shutdown_seconds)


class _Door:
    """All connections: first those with an open request, then the others, the longest idle first."""

    def __init__(self, endpoints: Endpoints, limits: PortLimits) -> None:
        self.limits = limits
        self._routes = {**endpoints.public, **endpoints.private}
        self.asking: set[_Connection] = set()
        self.answers = Tasks()
        self.idle: dict[_Connection, None] = {}

    def admits(self, connection: "_Connection") -> bool:
        """Returns whether the connection is admitted. It is not if there are too many, and all of them have open
        requests.
        """
        if len(self.asking) + len(self.idle) >= self.limits.most_connections:
            if not self.idle:
                return False
            next(iter(self.idle)).abort()
        self.idle[connection] = None
        return True

    async def answer(self, method: str, target: bytes, body: bytes) -> HttpAnswer:
        endpoint = routed(self._routes, method, target.decode("latin-1"))
        if isinstance(endpoint, HttpAnswer):
            return endpoint
        return await answered(endpoint[0], HttpRequest(body, endpoint[1]))

    async def close(self, seconds: float) -> None:
        await self.answers.end(seconds)
        for connection in (*self.asking, *self.idle):
            connection.abort()


class _Unread(Exception):
    """Stops the parser from reading further."""


class _Connection(asyncio.Protocol):
    """One connection. The parser calls the `on_…` methods."""

    def __init__(self, door: _Door) -> None:
        self._door = door
        self._parser = HttpRequestParser(self)
        self._timer: asyncio.TimerHandle | None = None
        self._is_asking = False
        """True while a whole request waits for its answer."""
        self._is_last = self._is_over = self._heard_all = False
        """Three flags: the next answer is the last, it was given, and the caller has stopped sending."""
        self._target, self._bytes = b"", 0
        self._body, self._body_bytes = list[bytes](), 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # TCP's
        self._transport, peer = transport, transport.get_extra_info("peername")
        # A kernel may be configured to route loopback addresses from elsewhere.
        if peer and is_local(peer[0]) and self._door.admits(self):
            self._allow(self._door.limits.silent_seconds)
        else:
            self.abort()

    def connection_lost(self, _: Exception | None) -> None:
        self._is_over = True
        self._allow(None)
        self._door.idle.pop(self, None)

    def abort(self) -> None:
        self.connection_lost(None)
        self._transport.abort()

    def eof_received(self) -> bool:
        """A caller that stopped sending may still read."""
        self._is_last = self._heard_all = True
        return self._is_asking

    def pause_writing(self) -> None:
        self._transport.pause_reading()
        self._allow(self._door.limits.request_seconds)

    def resume_writing(self) -> None:
        self._transport.resume_reading()
        self._allow(self._door.limits.request_seconds if self._is_over else None)

    def data_received(self, data: bytes) -> None:
        if self._is_over or self._is_asking:
            self._is_last = True
            return
        refusal: HttpAnswer | None = None
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            self._is_last = True
            refusal = too_large() if self._body_bytes > LARGEST_BODY_BYTES else text_answer("400: Bad Request", 400)
        if self._is_asking:
            return
        self._bytes += len(data)
        # Chunks of less than 128 bytes, and what follows the last one, count as part of the head.
        if self._bytes - self._body_bytes > self._door.limits.head_bytes + self._body_bytes // 16:
            refusal = text_answer("431: the head is too large", 431)
        if refusal is not None:
            self._is_last = True
            self._send(refusal)

    def on_message_begin(self) -> None:
        if self._is_asking:
            raise _Unread
        self._allow(self._door.limits.request_seconds)
        self._target, self._bytes = b"", 0
        self._body, self._body_bytes = [], 0

    def on_url(self, part: bytes) -> None:
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        is_asked = name.lower() == b"expect" and value.lower() == b"100-continue"
        if is_asked and self._parser.get_http_version() == "1.1":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_headers_complete(self) -> None:
        self._is_last = self._parser.get_http_version() != "1.1" or not self._parser.should_keep_alive()

    def on_body(self, part: bytes) -> None:
        self._body_bytes += len(part)
        if self._body_bytes > LARGEST_BODY_BYTES:
            raise _Unread
        self._body.append(part)

    def on_message_complete(self) -> None:
        self._is_asking = True
        self._allow(None)
        self._door.idle.pop(self, None)
        answer = self._answer(self._parser.get_method().decode(), self._target, b"".join(self._body))
        self._door.asking.add(self)
        self._door.answers.begin(answer)
        self._body = []

    async def _answer(self, method: str, target: bytes, body: bytes) -> None:
        try:
            answer = await self._door.answer(method, target, body)
        except asyncio.CancelledError:
            # Who waits for an answer that will not come learns it now.
            self.abort()
            raise
        finally:
            self._is_asking = False
            self._door.asking.discard(self)
        if not self._transport.is_closing():
            self._door.idle[self] = None
            self._send(answer, with_body=method != "HEAD")
        answer.afterwards()

    def _send(self, answer: HttpAnswer, *, with_body: bool = True) -> None:
        status, ending = HTTPStatus(answer.status), "Connection: close\r\n" if self._is_last else ""
        head = f"HTTP/1.1 {status} {status.phrase}\r\nContent-Type: {answer.media_type}\r\n{ending}"
        head += f"Content-Length: {len(answer.body)}\r\n\r\n"
        self._transport.write(head.encode() + (answer.body if with_body else b""))
        if not self._is_last:
            return
        self._is_over = True
        if self._heard_all:
            self._transport.close()
        else:
            # If the socket closed with unread data, the kernel would discard the answer.
            self._transport.write_eof()
            self._allow(self._door.limits.request_seconds)

    def _allow(self, seconds: float | None) -> None:
        """Allows this much time until the next call of this method; None is no limit. Then the connection is closed."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, self.abort)
