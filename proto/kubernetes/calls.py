"""Sends short requests over HTTP/1.1 on kept connections, at a third of aiohttp's cost (edge to httptools).

A request fits into one write, and an answer is held in memory as a whole. No proxies, no redirects, no compression.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

LARGEST_REPLY_BYTES = 16 * 1024 * 1024
"""Ten times what etcd stores of one object."""
LARGEST_HEAD_BYTES = 1024 * 1024
_HAPPY_EYEBALLS_SECONDS = 0.25
"""Before the other address family is tried as well (RFC 8305)."""
SocketOptions = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Reply:
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
        options: SocketOptions,
        *,
        most: int,
        idle_seconds: float,
    ) -> None:
        """Creates the pool. `server_hostname` is expected in the certificate instead of the URL's host."""
        where = urlsplit(url)
        is_safe = where.scheme == "https"
        self._host, self._port = where.hostname or "", where.port or (443 if is_safe else 80)
        self._tls = tls if is_safe else None
        self._server_hostname = (server_hostname or self._host) if is_safe else None
        self._host_header, self._prefix = where.netloc.rpartition("@")[2], where.path.rstrip("/")
        self._options = options
        self._turns = asyncio.Semaphore(most)
        self._idle_seconds = idle_seconds
        self._idle: deque[_CallConnection] = deque()
        """Free connections; the most recently used is last."""

    async def send(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        """Sends a request. Raises OSError if no whole answer arrives. Only a GET is repeated, if a kept connection had
        closed.
        """
        head = _head(self._host_header, tuple(headers.items()))
        length = b"" if body is None else b"Content-Length: %d\r\n" % len(body)
        said = b"%b %b%b%b%b\r\n%b" % (method.encode(), self._prefix.encode(), path.encode(), head, length, body or b"")
        async with self._turns:
            self._drop_stale()
            kept = self._kept()
            if kept is not None and method == "GET":
                try:
                    return await self._asked(kept, said)
                except OSError:
                    # The peer may have closed it at that moment.
                    kept = None
            return await self._asked(kept or await self._connected(), said)

    async def _asked(self, connection: "_CallConnection", said: bytes) -> Reply:
        try:
            return await connection.ask(said)
        finally:
            if connection.is_free():
                self._idle.append(connection)
            else:
                connection.abort()

    def close(self) -> None:
        for connection in self._idle:
            connection.abort()

    def _drop_stale(self) -> None:
        oldest = asyncio.get_running_loop().time() - self._idle_seconds
        while self._idle and self._idle[0].used_at < oldest:
            self._idle.popleft().abort()

    def _kept(self) -> "_CallConnection | None":
        while self._idle:
            connection = self._idle.pop()
            if connection.is_free():
                return connection
        return None

    async def _connected(self) -> "_CallConnection":
        loop = asyncio.get_running_loop()
        transport, connection = await loop.create_connection(
            _CallConnection,
            self._host,
            self._port,
            ssl=self._tls,
            server_hostname=self._server_hostname,
            happy_eyeballs_delay=_HAPPY_EYEBALLS_SECONDS,
        )
        opened = transport.get_extra_info("socket")
        for level, option, value in self._options:
            opened.setsockopt(level, option, value)
        return connection


class _CallConnection(asyncio.Protocol):
    """One connection; the parser calls the `on_…` methods."""

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        self._answer: asyncio.Future[Reply] | None = None
        self._is_usable = True
        self.used_at = 0.0
        """Time of the event loop's clock."""
        self._begin()

    def _begin(self) -> None:
        self._reason, self._retry_after, self._body = b"", b"", list[bytes]()
        self._size = self._bytes = 0

    def is_free(self) -> bool:
        return self._is_usable and self._answer is None and not self._transport.is_closing()

    async def ask(self, said: bytes) -> Reply:
        """Sends a request on a free connection."""
        loop = asyncio.get_running_loop()
        answer = self._answer = loop.create_future()
        self._transport.write(said)
        reply: Reply = await answer
        self.used_at = loop.time()
        return reply

    def abort(self) -> None:
        self._is_usable = False
        self._transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # TCP's or TLS's
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(str(error) if error else "the connection ended before the answer")

    def data_received(self, data: bytes) -> None:
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
            raise ValueError("nothing was asked")
        self._begin()

    def on_status(self, part: bytes) -> None:
        self._reason += part

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(name) == 11 and name.lower() == b"retry-after":
            self._retry_after = value

    def on_body(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > LARGEST_REPLY_BYTES:
            raise ValueError(f"it is longer than {LARGEST_REPLY_BYTES} bytes")
        self._body.append(part)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < HTTPStatus.OK:
            return
        self._is_usable = self._is_usable and self._parser.should_keep_alive()
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            body, reason = b"".join(self._body), self._reason.decode(errors="replace")
            answer.set_result(Reply(status, body, reason, self._retry_after.decode(errors="replace")))
        self._body = []

    def _fail(self, problem: str) -> None:
        self._is_usable = False
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(ConnectionError(problem))


@lru_cache(maxsize=64)
def _head(host: str, headers: tuple[tuple[str, str], ...]) -> bytes:
    """Returns the head after the path, up to the body's length. Raises OSError for an invalid header."""
    lines = [f" HTTP/1.1\r\nHost: {host}", *(f"{name}: {value}" for name, value in headers)]
    if any("\r" in text or "\n" in text for pair in headers for text in pair):
        raise OSError("a request header holds a line break: check the credentials")
    return ("\r\n".join(lines) + "\r\n").encode()
