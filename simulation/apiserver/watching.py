"""Watches: the log of the store as a stream of events, one JSON object a line (edge)."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
from aiohttp import web

from simulation.apiserver import tables
from simulation.apiserver.errors import ApiRefusal, JsonObject, bad_request
from simulation.apiserver.operations import Operations
from simulation.apiserver.routes import Target, is_true
from simulation.apiserver.selectors import Selector
from simulation.apiserver.store import Change

LONGEST_WATCH_SECONDS = 3600


@dataclass(slots=True)
class Watching:
    """All open watches of a server."""

    operations: Operations
    bookmark_seconds: float
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _open: list[asyncio.Transport] = field(default_factory=list)
    _closing: bool = False

    def wake(self) -> None:
        """Something was written: every watch looks at the log."""
        self._news.set()
        self._news = asyncio.Event()

    def count(self) -> int:
        """Returns how many are open."""
        return len(self._open)

    def drop_all(self) -> int:
        """Cuts the connection of every open watch; how many there were."""
        dropped = list(self._open)
        for connection in dropped:
            connection.abort()
        return len(dropped)

    def close(self) -> None:
        """Ends every watch cleanly, as a server does that shuts down."""
        self._closing = True
        self.wake()

    async def stream(
        self, request: web.Request, target: Target, chosen: Selector, *, as_table: bool, stall: bool
    ) -> web.StreamResponse:
        """Answers a watch until its timeout, the client's leaving or the end of the server."""
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        feed = Feed(self.operations, target, chosen, request, as_table)
        opening = feed.opening()
        connection = request.transport
        if connection is None:
            return response
        self._open.append(connection)
        try:
            await response.prepare(request)
            await self._send(response, feed, opening, stall=stall)
        except (ConnectionError, asyncio.CancelledError):
            if not connection.is_closing():
                raise
        finally:
            self._open.remove(connection)
        return response

    async def _send(self, response: web.StreamResponse, feed: "Feed", opening: bytes, *, stall: bool) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + feed.timeout_seconds
        bookmark_at = loop.time() + self.bookmark_seconds
        if opening and not stall:
            await response.write(opening)
        while not self._closing and loop.time() < end:
            news = self._news
            try:
                lines = b"" if stall else feed.lines()
            except ApiRefusal as e:
                await response.write(line("ERROR", e.status()))
                return
            if feed.bookmarks and not stall and loop.time() >= bookmark_at:
                lines += feed.bookmark()
                bookmark_at = loop.time() + self.bookmark_seconds
            if lines:
                await response.write(lines)
                continue
            await _until(news, min(end, bookmark_at if feed.bookmarks and not stall else end) - loop.time())
        if feed.bookmarks and not stall:
            await response.write(feed.bookmark())


async def _until(news: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(max(seconds, 0.001)):
            await news.wait()
    except TimeoutError:
        return


class Feed:
    """One watch's place in the log and the form its client requested."""

    def __init__(
        self, operations: Operations, target: Target, chosen: Selector, request: web.Request, as_table: bool
    ) -> None:
        query = request.query
        version = query.get("resourceVersion", "")
        if version and not version.isdigit():
            raise bad_request(f"resourceVersion: Invalid value: {version!r}: expected a whole number")
        self._operations = operations
        self._store = operations.store
        self._target = target
        self._chosen = chosen
        self._as_table = as_table
        self._headings = True
        self._as_list = is_true(query.get("sendInitialEvents", ""))
        self._from_start = self._as_list or version in {"", "0"}
        self._at = self._store.version if self._from_start else int(version)
        self._began_at = self._at
        self.bookmarks = is_true(query.get("allowWatchBookmarks", ""))
        text = query.get("timeoutSeconds", "")
        self.timeout_seconds = int(text) if text.isdigit() and int(text) else LONGEST_WATCH_SECONDS

    def opening(self) -> bytes:
        """Returns the first events: without a resourceVersion a watch begins with what is there, and one that takes the
        place of a list (`sendInitialEvents`) ends them with a bookmark.
        """
        if not self._from_start:
            return b""
        held = self._operations.page(self._target, self._chosen, version=self._at).items
        events = b"".join(self._event("ADDED", item) for item in held)
        return (
            events + self._marked({"annotations": {"k8s.io/initial-events-end": "true"}}) if self._as_list else events
        )

    def lines(self) -> bytes:
        """Returns the events since the last call; 410 Expired if the log no longer reaches back."""
        if self._at == self._store.version:
            return b""
        changes = self._store.changes_after(self._target.kind.plural, self._at)
        self._at = max(self._at, self._store.version)
        return b"".join(self._event(kind, item) for change in changes for kind, item in self._seen(change))

    def bookmark(self) -> bytes:
        """Returns nothing while the store stands where the watch began: its client knows that much."""
        if self._at <= self._began_at:
            return b""
        return self._marked({})

    def _marked(self, more: JsonObject) -> bytes:
        """Returns a bookmark, with this beside its version."""
        kind = self._target.kind
        metadata = {"resourceVersion": str(self._at), "creationTimestamp": None, **more}
        return line("BOOKMARK", {"kind": kind.kind, "apiVersion": kind.group_version, "metadata": metadata})

    def _seen(self, change: Change) -> Iterator[tuple[str, JsonObject]]:
        """The change as this watch sees it: objects enter and leave its selector."""
        namespace, _ = change.key
        if self._target.namespace not in {"", namespace}:
            return
        was = change.before is not None and self._chosen(change.before)
        is_ = change.after is not None and self._chosen(change.after)
        if is_:
            yield "MODIFIED" if was else "ADDED", change.last
        elif was and change.after is None:
            yield "DELETED", change.last
        elif was and change.before is not None:
            # Leaving the selector: the last state that matched, at the version of the change.
            version = {"resourceVersion": str(change.version)}
            yield "DELETED", change.before | {"metadata": change.before["metadata"] | version}

    def _event(self, kind: str, item: JsonObject) -> bytes:
        if not self._as_table:
            return line(kind, item)
        rows = tables.table(self._target.kind, [item], self._operations.now(), headings=self._headings)
        self._headings = False
        return line(kind, rows)


def line(kind: str, item: JsonObject) -> bytes:
    return msgspec.json.encode({"type": kind, "object": item}) + b"\n"
