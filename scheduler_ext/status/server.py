"""Serves the status page and its event stream (edge of browsers). No route changes anything.

On loopback the page answers callers of this host. On any other address its files are open, for they show nothing of the
cluster, and the event stream needs a token.
"""

import asyncio
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from importlib.resources import files
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from proto.kubernetes.errors import ApiError, ApiUnreachable
from scheduler_ext.http.messages import is_local
from scheduler_ext.status.access import AccessRefusal
from scheduler_ext.status.board import Board
from scheduler_ext.status.pod_page import ShownPod
from scheduler_ext.status.view import Poll

T = TypeVar("T")

MOST_STREAMS = 32
MOST_OTHER_STREAMS = 24
"""The most of these streams for callers that are not the page itself: scripts leave room for people."""
STREAM_SECONDS = 60.0
"""A stream ends after this time, and the browser continues it: a listener's limit for an answer is 120 s, and who
may see the page is looked up for each stream.
"""
BEAT_SECONDS = 1.0
"""A page without a message for 3 s does not call itself live."""
WRITE_SECONDS = 10.0
"""A browser that takes none of a message for so long is disconnected."""
RETRY_MILLISECONDS = range(1_000, 3_000)
"""The range of the time after which a reader comes back. It differs from stream to stream, so that readers do not all
come back at once.
"""
MOST_PODS_READ = 8
"""Pods that are read from the API server at the same time."""
_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
HEADER = "X-TopoGPU-Token"
PAGE_HEADER = "X-TopoGPU-Page"
"""The page sends it with any value."""

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


Admission = Callable[[str], Awaitable[AccessRefusal | None]]
"""Returns why a token does not open the stream; None if it does."""
PodSource = Callable[[str, str], Awaitable[ShownPod | None]]
"""Returns the pod of this namespace and name; None if there is none. Raises ApiError or ApiUnreachable."""


async def _no_pods(_namespace: str, _name: str) -> ShownPod | None:
    return None


class StatusServer:
    """Everything runs on the event loop that serves the application; only `show`, `recall` and
    `remembered` may be called from another one.
    """

    def __init__(
        self,
        process: str,
        admission: Admission | None = None,
        *,
        pod_of: PodSource = _no_pods,
        write_seconds: float = WRITE_SECONDS,
    ) -> None:
        """Numbers messages for this `process`, as `Board` does. Without `admission` only callers of this host get an
        answer.
        """
        self._pod_of = pod_of
        self._remembered = b""
        self._pods_being_read = 0
        self._write_seconds = write_seconds
        self._admission = admission
        self._board = Board(process)
        self._changed = asyncio.Event()
        self._made: tuple[tuple[str, str], list[bytes]] = (("", ""), [])
        """The last messages, and the ids from which and to which they lead: most readers need the same ones."""
        self._streams = 0
        self._ending = False
        self._looked_at = 0.0
        """The time of the last look, before the first one that of the start."""
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def watched(self) -> bool:
        """Returns whether a browser is connected. Safe in any thread."""
        return self._streams > 0

    async def show(self, poll: Poll) -> bool:
        """Returns True once the poll is worked in, so that no polls pile up; False before the start and after
        the end.
        """
        return await self._there(partial(self._apply, poll)) is not None

    async def recall(self, written: bytes) -> bool:
        """Goes on with what another process remembered. Returns False before the start and after the end."""
        return await self._there(partial(self._recall, written)) is not None

    async def remembered(self) -> bytes:
        """Returns the history and the GPU-hours, after the end those of the end; nothing before the start."""
        return await self._there(self._remember) or self._remembered

    async def _there(self, work: Callable[[], Coroutine[None, None, T]]) -> T | None:
        """Returns what the work on the page's own loop returns; None before its start and after its end."""
        loop = self._loop
        if loop is None:
            return None
        doing = work()
        try:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(doing, loop))
        except RuntimeError:  # the loop has ended
            doing.close()
            return None

    async def _remember(self) -> bytes:
        return self._board.remembered()

    async def _recall(self, written: bytes) -> bool:
        self._board.recall(written)
        self._wake()
        return True

    async def _apply(self, poll: Poll) -> bool:
        self._looked_at = asyncio.get_running_loop().time()
        if self._board.apply(poll):
            self._wake()
        return True

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def application(self) -> web.Application:
        application = web.Application(middlewares=[_only_from_this_host] if self._admission is None else [])
        application.on_response_prepare.append(_put_headers)
        application.on_shutdown.append(self._end_streams)
        application.router.add_get("/events", self._events)
        application.router.add_get("/pod", self._pod)
        for path, file, media_type in _page():
            application.router.add_get(path, _handing_out(file, media_type))
        application.cleanup_ctx.append(self._started)
        return application

    async def _end_streams(self, _: web.Application) -> None:
        self._ending = True
        self._changed.set()

    async def _started(self, _: web.Application) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        self._looked_at = self._loop.time()
        yield
        self._loop, self._remembered = None, self._board.remembered()

    async def _refused(self, request: web.Request) -> web.Response | None:
        """Returns the answer to a caller who may not see the page; None for one who may."""
        refusal = None if self._admission is None else await self._admission(_token(request))
        return None if refusal is None else web.Response(status=refusal.status, text=f"{refusal.why}\n")

    async def _pod(self, request: web.Request) -> web.StreamResponse:
        if (refused := await self._refused(request)) is not None:
            return refused
        namespace, _, name = request.query.get("name", "").partition("/")
        if not (_NAME.fullmatch(namespace) and _NAME.fullmatch(name)):
            return web.Response(status=404, text="there is no such pod\n")
        if self._pods_being_read >= MOST_PODS_READ:
            return web.Response(status=503, text="too many pods are being read; try again in a second\n")
        self._pods_being_read += 1
        try:
            found = await self._pod_of(namespace, name)
        except (ApiError, ApiUnreachable) as error:
            return web.Response(status=502, text=f"the API server does not answer: {error}\n")
        finally:
            self._pods_being_read -= 1
        if found is None:
            return web.Response(status=404, text=f"there is no pod {namespace}/{name} any more\n")
        return web.Response(body=msgspec.json.encode(found), content_type="application/json", charset="utf-8")

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if (denied := await self._refused(request)) is not None:
            return denied
        most = MOST_STREAMS if PAGE_HEADER in request.headers else MOST_OTHER_STREAMS
        if self._streams >= most:
            text = f"{self._streams} browsers show this page already; close one of them\n"
            refused = web.Response(status=503, text=text, headers={"Retry-After": "10"})
            refused.force_close()
            return refused
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
        self._streams += 1
        try:
            await response.prepare(request)
            await self._follow(request, response)
        except (TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._streams -= 1
        return response

    async def _follow(self, request: web.Request, response: web.StreamResponse) -> None:
        """Sends messages until the stream ends. Raises TimeoutError for a browser that does not read, and
        ConnectionError.
        """
        seen = request.headers.get("Last-Event-ID") or request.query.get("since", "")
        retry = random.choice(RETRY_MILLISECONDS)  # noqa: S311
        await self._write(response, f"retry: {retry}\n\n".encode())
        loop = asyncio.get_running_loop()
        ends = loop.time() + STREAM_SECONDS
        while loop.time() < ends and not self._ending:
            changed = self._changed
            if self._board.id != seen:
                messages, seen = self._messages(seen), self._board.id
                for message in messages:
                    await self._write(response, message)
                continue
            try:
                async with asyncio.timeout(BEAT_SECONDS):
                    await changed.wait()
            except TimeoutError:
                await self._write(response, self._board.beat(loop.time() - self._looked_at))

    def _messages(self, seen: str) -> list[bytes]:
        ids = seen, self._board.id
        if self._made[0] != ids:
            self._made = ids, list(self._board.messages(seen))
        return self._made[1]

    async def _write(self, response: web.StreamResponse, message: bytes) -> None:
        """Sends one message. Raises TimeoutError for a browser that does not read, and ConnectionError."""
        async with asyncio.timeout(self._write_seconds):
            await response.write(message)


def _token(request: web.Request) -> str:
    """Returns the caller's token; empty without one. The API server's proxy takes `Authorization` for itself, so the
    page sends a header of its own.
    """
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    return request.headers.get(HEADER, "") or (token.strip() if kind.lower() == "bearer" else "")


def _page() -> Iterator[tuple[str, bytes, str]]:
    """Yields path, content and type of each file of the page."""
    for file in files("scheduler_ext.status").joinpath("page").iterdir():
        media_type = _TYPES.get(file.name.rpartition(".")[2])
        if media_type is not None:
            yield "/" if file.name == "index.html" else f"/{file.name}", file.read_bytes(), media_type


def _handing_out(content: bytes, media_type: str) -> Handler:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=content, content_type=media_type, charset="utf-8")

    return answer


async def _put_headers(_: web.Request, response: web.StreamResponse) -> None:
    """Adds the headers to each answer, also to refusals and to answers that begin before they end."""
    response.headers.update(_HEADERS)


@web.middleware
async def _only_from_this_host(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuses callers of other hosts and sites. A page of another site reaches loopback through the browser of a person
    who may see this page. Its requests are marked by the browser, or name another host: a name of its own that it had
    resolved to this address.
    """
    if not is_local(request.remote):
        raise web.HTTPForbidden(text="only callers on the same host get an answer, such as kubectl port-forward\n")
    if not _is_this_host(request.headers.get("Host", "")):
        raise web.HTTPForbidden(text="open this page as localhost, 127.0.0.1 or [::1]\n")
    if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        raise web.HTTPForbidden(text="another site asked for this\n")
    return await handler(request)


def _is_this_host(host: str) -> bool:
    with suppress(ValueError):
        name = urlsplit(f"//{host}").hostname
        return name == "localhost" or is_local(name)
    return False
