"""HTTP towards whoever comes: at no port may strangers use up the connections that others need (edge).

aiohttp waits for the first request of a connection, and for the rest of a body, as long as it takes. Here a connection
that says nothing is closed after a while, and when there are too many the one that has been idle longest goes first.
"""

import asyncio
import logging
import resource
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from aiohttp import web
from aiohttp.http import HttpProcessingError
from aiohttp.typedefs import Handler

log = logging.getLogger(__name__)
_STRANGERS_MISTAKES = (HttpProcessingError, web.RequestPayloadError)
# They are answered with 400: logged as well, with a traceback as aiohttp does, they would let anybody fill the log.
log.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], _STRANGERS_MISTAKES)))

MOST_FILES = 65_536
_SWEEP_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """With the connections of one port."""

    most_connections: int = 256
    header_seconds: float = 10.0
    """From the connection to its first request, its handshake included."""
    body_seconds: float = 30.0
    """From a request's header to the end of its body."""


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
    """Host and port where requests are served. Raises OSError; `host` None is every address."""
    allow_many_files()
    patience = patience or Patience()
    door = _Door(patience)
    application.middlewares.append(door.note_request)
    runner = web.AppRunner(application, access_log=None, logger=log, shutdown_timeout=shutdown_seconds)
    await runner.setup()
    try:
        handshake = None if tls is None else patience.header_seconds
        listener = await asyncio.get_running_loop().create_server(
            partial(door.connection, runner.server), host, port, ssl=tls, ssl_handshake_timeout=handshake
        )
        sweeping = asyncio.create_task(door.sweep())
        try:
            found_host, found_port = listener.sockets[0].getsockname()[:2]
            yield str(found_host), int(found_port)
        finally:
            listener.close()
            sweeping.cancel()
            await asyncio.gather(sweeping, return_exceptions=True)
    finally:
        await runner.cleanup()


class _Turned(asyncio.Protocol):
    """Away at the door."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            transport.abort()


class _Door:
    """Knows of each connection since when it is idle, and of each request since when its body is awaited."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._now = asyncio.get_running_loop().time
        self._silent: dict[web.RequestHandler, float] = {}
        """Those that have asked nothing yet."""
        self._idle: dict[web.RequestHandler, None] = {}
        """All that ask nothing now, whoever does so for longest first."""
        self._asking: dict[web.RequestHandler, tuple[web.Request, float]] = {}

    def connection(self, server: web.Server | None) -> asyncio.Protocol:
        """The protocol of a new one."""
        if server is None or (len(server.connections) >= self._patience.most_connections and not self._drop_one()):
            return _Turned()
        handler = server()
        self._silent[handler] = self._now()
        self._idle[handler] = None
        return handler

    @web.middleware
    async def note_request(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        caller = request.protocol
        self._silent.pop(caller, None)
        self._idle.pop(caller, None)
        self._asking[caller] = request, self._now()
        try:
            return await handler(request)
        except web.RequestPayloadError as error:
            raise web.HTTPBadRequest(text=f"$: the body cannot be read: {error}\n") from error
        finally:
            del self._asking[caller]
            self._idle[caller] = None

    async def sweep(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            now = self._now()
            for handler, since in list(self._silent.items()):
                if now - since >= self._patience.header_seconds:
                    self._drop(handler)
            for request, since in list(self._asking.values()):
                if now - since >= self._patience.body_seconds and not request.content.is_eof():
                    _abort(request.transport)
            for handler in [each for each in self._idle if each.transport is None and each not in self._silent]:
                self._drop(handler)

    def _drop_one(self) -> bool:
        """False when all of them ask."""
        handler = next((each for each in self._idle if each.transport is not None), None)
        if handler is not None:
            self._drop(handler)
        return handler is not None

    def _drop(self, handler: web.RequestHandler) -> None:
        self._silent.pop(handler, None)
        self._idle.pop(handler, None)
        _abort(handler.transport)


def _abort(transport: asyncio.Transport | None) -> None:
    if transport is not None:
        transport.abort()


def allow_many_files() -> None:
    """As many open files as this process may have, within reason: the usual first limit is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
