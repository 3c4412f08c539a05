"""Writes that come once for each pod, over HTTP/1.1 on kept connections, at a third of aiohttp's CPU time.

`docs/performance.md` has what that is worth. A request fits into one write, an answer is held in memory as a whole.
Nothing is repeated. There are no proxies, no redirects and no compression (edge of httptools).
"""

import asyncio
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

from aiohappyeyeballs import SocketFactoryType, start_connection
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

LARGEST_REPLY_BYTES = 16 * 1024 * 1024
"""Ten times what etcd stores of one object."""
LARGEST_HEAD_BYTES = 1024 * 1024
_HAPPY_EYEBALLS_SECONDS = 0.25
"""Before the other address family is tried as well (RFC 8305)."""
_CLOSED = "the client was closed"


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer. `retry_after` is the text of that header."""

    status: int
    body: bytes
    reason: str = ""
    retry_after: str = ""


class Calls:
    """Requests to one URL, at most `most` at the same time; the others wait."""

    def __init__(
        self,
        url: str,
        tls: ssl.SSLContext,
        server_hostname: str | None,
        opened: SocketFactoryType,
        *,
        most: int,
        idle_seconds: float,
    ) -> None:
        """Opens nothing yet; `opened` makes sockets. `server_hostname` is expected in the certificate instead of the
        URL's host. A connection that was idle for `idle_seconds` is closed.
        """
        where = urlsplit(url)
        is_safe = where.scheme == "https"
        self._host, self._port = where.hostname or "", where.port or (443 if is_safe else 80)
        self._tls = tls if is_safe else None
        # Certificates name hosts without the root's dot.
        self._server_hostname = (server_hostname or self._host).rstrip(".") if is_safe else None
        self._host_header, self._prefix = where.netloc.rpartition("@")[2], where.path.rstrip("/")
        self._opened = opened
        self._turns = asyncio.Semaphore(most)
        self._idle_seconds = idle_seconds
        self._idle: dict[_CallConnection, asyncio.TimerHandle] = {}
        """Free connections and their ends; the most recently used is last."""
        self._used: set[_CallConnection] = set()
        self._is_closed = False

    async def send(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Sends a request, with headers that hold no line break. Raises OSError if no whole answer arrives."""
        lines = [f"{method} {self._prefix}{path} HTTP/1.1", f"Host: {self._host_header}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        request = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body
        async with self._turns:
            connection = self._kept() or await self._connected()
            self._used.add(connection)
            try:
                return await connection.send(request)
            finally:
                self._used.discard(connection)
                if connection.is_free():
                    end = asyncio.get_running_loop().call_later(self._idle_seconds, self._end, connection)
                    self._idle[connection] = end
                else:
                    connection.abort()

    def close(self) -> None:
        """Ends all requests and all connections."""
        self._is_closed = True
        for connection in (*self._idle, *self._used):
            connection.abort()

    def _kept(self) -> "_CallConnection | None":
        while self._idle:
            connection, end = self._idle.popitem()
            end.cancel()
            if connection.is_free():
                return connection
        return None

    def _end(self, connection: "_CallConnection") -> None:
        del self._idle[connection]
        connection.abort()

    async def _connected(self) -> "_CallConnection":
        if self._is_closed:
            raise ConnectionError(_CLOSED)
        loop = asyncio.get_running_loop()
        # asyncio's own race between addresses loses the winner's socket where the call is cancelled.
        connected = await start_connection(
            await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM),
            happy_eyeballs_delay=_HAPPY_EYEBALLS_SECONDS,
            socket_factory=self._opened,
        )
        _, connection = await loop.create_connection(
            _CallConnection, sock=connected, ssl=self._tls, server_hostname=self._server_hostname
        )
        if self._is_closed:
            connection.abort()
            raise ConnectionError(_CLOSED)
        return connection


class _CallConnection(asyncio.Protocol):
    """One connection; the parser calls the `on_…` methods."""

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        self._answer: asyncio.Future[Reply] | None = None
        self.on_message_begin()
        self._is_usable = True

    def is_free(self) -> bool:
        return self._is_usable and self._answer is None and not self._transport.is_closing()

    async def send(self, request: bytes) -> Reply:
        """Sends a request on a free connection. Raises ConnectionError."""
        answer = self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        reply: Reply = await answer
        return reply

    def abort(self) -> None:
        self._is_usable = False
        self._transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # TCP's or TLS's
        self._transport = transport

    def eof_received(self) -> None:
        if self._answer is not None and self._lasts_until_eof:
            self.on_message_complete()

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(str(error) if error else "the connection ended before the answer")

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            # Nothing was sent that this could answer.
            self.abort()
            return
        try:
            self._parser.feed_data(data)
            self._bytes += len(data)
            if self._answer is not None and self._bytes - self._size > LARGEST_HEAD_BYTES + self._size // 16:
                raise HttpParserError("its header is too long")
        except (HttpParserError, HttpParserUpgrade) as error:
            self._fail(f"the answer cannot be read: {error.__context__ or error}")
            self.abort()

    def on_message_begin(self) -> None:
        if self._answer is None:
            # A second answer belongs to no request.
            self._is_usable = False
        self._reason, self._retry_after, self._body = b"", b"", list[bytes]()
        self._size = self._bytes = 0
        self._has_length = self._lasts_until_eof = False

    def on_status(self, part: bytes) -> None:
        self._reason += part

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"retry-after":
            self._retry_after = value
        elif name in (b"content-length", b"transfer-encoding"):
            self._has_length = True

    def on_headers_complete(self) -> None:
        self._lasts_until_eof = not self._has_length

    def on_body(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > LARGEST_REPLY_BYTES:
            raise ValueError(f"it is longer than {LARGEST_REPLY_BYTES} bytes")
        self._body.append(part)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if HTTPStatus.CONTINUE <= status < HTTPStatus.OK and status != HTTPStatus.SWITCHING_PROTOCOLS:
            return
        answer, self._answer = self._answer, None
        self._is_usable = self._is_usable and self._parser.should_keep_alive()
        if answer is not None and not answer.done():
            body, reason = b"".join(self._body), self._reason.decode(errors="replace")
            answer.set_result(Reply(status, body, reason, self._retry_after.decode(errors="replace")))
        self._body = []

    def _fail(self, problem: str) -> None:
        self._is_usable = False
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(ConnectionError(problem))
