"""An API server under test, the embedded or the real one, with what only its owner can do to it."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from simulation.apiserver import EmbeddedApiServer
from tests.cluster.control_plane import ControlPlane


@dataclass(frozen=True, kw_only=True)
class Peer:
    """`restart` also makes it forget what happened before, as a restart of a real one does."""

    url: str
    kubeconfig: Callable[[str], str]
    """By user."""
    compact: Callable[[], Awaitable[None]]
    stop: Callable[[], Awaitable[None]]
    start: Callable[[], Awaitable[None]]
    http: aiohttp.ClientSession
    deny: Callable[[str, str], None]
    """A verb on a resource, to whoever comes; the real server has its stranger, who may do nothing."""
    bookmarked_watch_seconds: int
    """The shortest watch that gets bookmarks: the real server sends them each minute and 2 s before the end."""

    async def send(
        self, method: str, path: str, document: object = None, media_type: str = "application/json"
    ) -> tuple[int, dict[str, Any]]:
        """Status and answer of a request of the administrator's."""
        headers = {"Content-Type": media_type, "Accept": "application/json"}
        body = None if document is None else json.dumps(document)
        async with self.http.request(method, self.url + path, data=body, headers=headers) as response:
            return response.status, json.loads(await response.read())

    async def create(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        status, answer = await self.send("POST", path, document)
        assert status == 201, answer
        return answer

    async def minor(self) -> int:
        """Of its version: 37 for v1.37.1."""
        _, version = await self.send("GET", "/version")
        return int(version["minor"].rstrip("+"))

    async def namespace(self, name: str) -> str:
        await self.create("/api/v1/namespaces", {"metadata": {"name": name}})
        return name


@asynccontextmanager
async def embedded(folder: Path) -> AsyncIterator[Peer]:
    async with EmbeddedApiServer(bookmark_seconds=0.1) as server, aiohttp.ClientSession() as http:

        def kubeconfig(user: str) -> str:
            path = folder / f"{user}.kubeconfig"
            path.write_text(server.kubeconfig(user=user))
            return str(path)

        async def compact() -> None:
            server.compact()

        async def start() -> None:
            server.compact()
            await server.go_online()

        yield Peer(
            url=server.url,
            kubeconfig=kubeconfig,
            compact=compact,
            stop=server.go_offline,
            start=start,
            http=http,
            deny=lambda verb, resource: server.denied.add((verb, resource)),
            bookmarked_watch_seconds=2,
        )


@asynccontextmanager
async def real(plane: ControlPlane) -> AsyncIterator[Peer]:
    async def compact() -> None:
        await asyncio.to_thread(plane.compact)

    async def stop() -> None:
        await asyncio.to_thread(plane.stop_api_server)

    async def start() -> None:
        await asyncio.to_thread(plane.start_api_server)

    tls = ssl.create_default_context(cafile=plane.certificate)
    async with aiohttp.ClientSession(
        headers={"Authorization": "Bearer admin"}, connector=aiohttp.TCPConnector(ssl=tls, limit=0)
    ) as http:
        yield Peer(
            url=plane.url,
            kubeconfig=plane.kubeconfig,
            compact=compact,
            stop=stop,
            start=start,
            http=http,
            deny=lambda verb, resource: None,
            bookmarked_watch_seconds=5,
        )
