"""A real HTTP server on 127.0.0.1 that answers lists and watches as each test scripts it, misbehaviour included."""

import asyncio
import json
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from proto.kubernetes.client import SILENT_SECONDS, ApiServer
from proto.kubernetes.objects import Node
from tests import builders

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: test
clusters: [{{name: c, cluster: {{server: "{url}"}}}}]
contexts: [{{name: test, context: {{cluster: c, user: u}}}}]
users: [{{name: u, user: {{token: "{token}"}}}}]
"""


@dataclass
class Scripted:
    """Each list and each watch takes the next handler of its queue; a watch without one stays open, silent.

    A list of one object, with which a client reads how far the history goes, shows only that.
    """

    lists: deque[Handler] = field(default_factory=deque)
    watches: deque[Handler] = field(default_factory=deque)
    others: deque[Handler] = field(default_factory=deque)
    history_reaches: int = 10**6
    seen: list[web.Request] = field(default_factory=list)
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    kubeconfig: Path = Path()
    port: int = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request)
        if request.method != "GET":
            return await self.others.popleft()(request)
        if "watch" in request.query:
            return await (self.watches.popleft() if self.watches else self.silence())(request)
        if request.query.get("limit") == "1" and "continue" not in request.query:
            return await page(self.history_reaches)(request)
        return await self.lists.popleft()(request)

    def queries(self, key: str, *, watch: bool) -> list[str | None]:
        """The values of one query parameter in the watches, or in the other reads."""
        return [seen.query.get(key) for seen in self.seen if ("watch" in seen.query) is watch]

    def trickle(self, piece: str, *lines: str, status: int = 200) -> Handler:
        """Sends the lines, then the piece again and again, and never ends."""

        async def handle(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(status=status)
            await response.prepare(request)
            await response.write("".join(lines).encode())
            while not self.closing.is_set():
                await response.write(piece.encode())
                await asyncio.sleep(0.02)
            return response

        return handle

    def silence(self, *lines: str) -> Handler:
        """Sends the lines, then nothing more, without closing."""
        return stream(*lines, then=self._wait)

    async def _wait(self, request: web.Request) -> None:
        await self.closing.wait()


def node(name: str, version: int, **labels: str) -> dict[str, object]:
    return {"metadata": {"name": name, "resourceVersion": str(version), "labels": labels}}


def read_node(name: str, version: int) -> Node:
    """The Node that a client reads of `node(name, version)`."""
    return builders.node(name, resource_version=str(version))


def event(kind: str, document: object) -> str:
    return json.dumps({"type": kind, "object": document}) + "\n"


def page(version: int, *items: object, continue_: str = "") -> Handler:
    return answer(200, {"metadata": {"resourceVersion": str(version), "continue": continue_}, "items": list(items)})


def answer(status: int, document: object, **headers: str) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        return web.json_response(document, status=status, headers=headers)

    return handle


def text(body: str, status: int = 200) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        return web.Response(text=body, status=status)

    return handle


def gone(message: str = "too old resource version") -> dict[str, object]:
    return {"kind": "Status", "status": "Failure", "reason": "Expired", "message": message, "code": 410}


async def drop(request: web.Request) -> None:
    """Cuts the TCP connection without ending the answer."""
    assert request.transport is not None
    request.transport.abort()


async def hang_up(request: web.Request) -> web.StreamResponse:
    """Cuts the TCP connection instead of answering."""
    await drop(request)
    return web.Response()


hanging_up = (hang_up, hang_up)
"""One failed read: aiohttp asks a second time when an idempotent request meets a closed connection."""


def stream(*lines: str, then: Callable[[web.Request], Awaitable[None]] | None = None) -> Handler:
    """A watch: the lines, then `then`, then a proper end."""

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for line in lines:
            await response.write(line.encode())
        if then is not None:
            await then(request)
        return response

    return handle


@asynccontextmanager
async def scripted_server() -> AsyncIterator[Scripted]:
    scripted = Scripted()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", scripted.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.2)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    scripted.port = runner.addresses[0][1]
    with tempfile.TemporaryDirectory(prefix="tg") as folder:
        scripted.kubeconfig = Path(folder, "kubeconfig")
        write_kubeconfig(scripted.kubeconfig, f"http://127.0.0.1:{scripted.port}")
        try:
            yield scripted
        finally:
            scripted.closing.set()
            await runner.cleanup()


def write_kubeconfig(path: Path, url: str, token: str = "secret") -> None:
    path.write_text(KUBECONFIG.format(url=url, token=token))


@asynccontextmanager
async def connected(
    scripted: Scripted, timeout_seconds: float = 30.0, silent_seconds: float = SILENT_SECONDS
) -> AsyncIterator[ApiServer]:
    kubeconfig = str(scripted.kubeconfig)
    api = await ApiServer.connect(kubeconfig, timeout_seconds=timeout_seconds, silent_seconds=silent_seconds)
    try:
        yield api
    finally:
        await api.close()
