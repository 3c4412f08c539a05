"""Keeps one kind of objects current: a paged list, then watches that resume where they ended."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from proto.kubernetes.client import SILENT_SECONDS, ApiServer
from proto.kubernetes.errors import ApiError, ApiUnreachable, Gone
from proto.kubernetes.objects import ListMeta, Object, ObjectMeta, Resource, version_number
from proto.kubernetes.wire import Added, Bookmark, Deleted, Modified, Opened

T = TypeVar("T", bound=Object)

FIRST_DELAY_SECONDS = 0.2
LONGEST_DELAY_SECONDS = 30.0
SETTLED_SECONDS = 1.0
"""A watch that was open this long counts as working, even without an event."""


@dataclass(frozen=True, slots=True)
class Replaced(Generic[T]):
    """A complete list: every object that is not in it is gone."""

    objects: tuple[T, ...]
    version: str = field(default="", compare=False)
    """The resourceVersion of the list."""


class ObjectApplied(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """Added or modified."""

    object: T


class ObjectRemoved(msgspec.Struct, Generic[T], frozen=True, gc=False):
    object: T


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The API server is unreachable; the last state stays valid until the next attempt."""

    problem: str
    retry_in_seconds: float


@dataclass(frozen=True, slots=True)
class Resumed:
    """The API server has accepted a watch again; a list means the same."""


Change = Replaced[T] | ObjectApplied[T] | ObjectRemoved[T] | Interrupted | Resumed


@dataclass(slots=True)
class Backoff:
    """Delays of 0.2 s, doubling up to 30 s; each is drawn from its upper half, so that clients spread out."""

    jitter: Callable[[], float]
    failures: int = 0

    def next_delay(self, at_least_seconds: float = 0.0) -> float:
        nominal = min(FIRST_DELAY_SECONDS * 2.0 ** min(self.failures, 16), LONGEST_DELAY_SECONDS)
        self.failures += 1
        return min(max(nominal * (0.5 + 0.5 * self.jitter()), at_least_seconds), LONGEST_DELAY_SECONDS)

    def reset(self) -> None:
        self.failures = 0


def _as_it_is(_: object) -> None:
    """Trims nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectorPace:
    """The sizes and times of lists and watches. A watch without events for `silent_seconds` is opened again."""

    page_size: int = 500
    watch_timeout_seconds: int = 300
    silent_seconds: float = SILENT_SECONDS
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    jitter: Callable[[], float] = random.random
    clock: Callable[[], float] = time.monotonic


def reflect(
    api: ApiServer,
    resource: Resource[T],
    *,
    namespace: str = "",
    field_selector: str = "",
    label_selector: str = "",
    trim: Callable[[T], None] = _as_it_is,
    pace: ReflectorPace | None = None,
) -> AsyncGenerator[Change[T], None]:
    """Yields the objects, then every change to them, without end. It never raises for errors of the API server.

    A silent watch is opened again at its position: its connection may be dead. If it had shown nothing at all, not even
    a bookmark, everything is listed: the API server's own watch may be stuck. `trim` may remove unused fields from a
    listed object, because a list is held until its last page has arrived.

    Before a watch is opened again, a list of one object shows whether the API server has gone back in its history, as
    after its etcd was restored from a backup. It would accept a watch from a version that it has not reached, and send
    nothing (kubernetes/kubernetes#107457). Then everything is listed. A single object, which its name selects, is
    listed every time.
    """
    selection = {"namespace": namespace, "field_selector": field_selector, "label_selector": label_selector}
    return _Reflection(api, resource, selection, trim, pace or ReflectorPace()).changes()


class _Reflection(Generic[T]):
    """One list and its watches."""

    def __init__(
        self,
        api: ApiServer,
        resource: Resource[T],
        selection: dict[str, str],
        trim: Callable[[T], None],
        pace: ReflectorPace,
    ) -> None:
        self._api = api
        self._resource = resource
        self._selection = selection
        self._trim = trim
        self._pace = pace
        self._backoff = Backoff(pace.jitter)
        self._position = ""
        """The resourceVersion at which the next watch starts; empty causes a list first."""
        self._began = 0.0
        """The start of the last attempt, or of its watch."""
        self._is_silent = True
        """True if the last watch has shown nothing."""
        self._is_away = False
        """True if the API server was last unreachable."""

    async def changes(self) -> AsyncGenerator[Change[T], None]:
        while True:
            self._began, self._is_silent = self._pace.clock(), True
            problem: Exception | None = None
            try:
                if not self._position or await self._is_outdated():
                    yield await self._list()
                    self._began, self._is_away = self._pace.clock(), False
                async with aclosing(self._watch()) as changes:
                    async for change in changes:
                        yield change
            except (ApiError, ApiUnreachable) as error:
                problem = error
            if self._goes_on_at_once(problem):
                continue
            delay, self._is_away = self._backoff.next_delay(_wished_delay(problem)), True
            yield Interrupted(str(problem or "the API server ended the watch at once"), delay)
            await self._pace.sleep(delay)

    def _goes_on_at_once(self, problem: Exception | None) -> bool:
        """Decides how the next attempt begins. Returns whether it needs no pause: an ended watch and an expired
        position are normal, unless they repeat without progress.
        """
        has_settled = self._pace.clock() - self._began >= SETTLED_SECONDS
        if has_settled:
            self._backoff.reset()
        if isinstance(problem, Gone) or (problem is None and has_settled and self._is_silent):
            self._position = ""
        if self._backoff.failures == 0 and (problem is None or isinstance(problem, Gone)):
            self._backoff.failures += 1
            return True
        return False

    async def _is_outdated(self) -> bool:
        """Returns whether a watch from the position may miss changes. Raises ApiError or ApiUnreachable.

        The page has no selector: an API server without a suitable index would read all objects to find one that
        matches.
        """
        if self._selection["field_selector"].startswith("metadata.name="):
            return True
        page = await self._api.list_page(self._resource, namespace=self._selection["namespace"], limit=1)
        return version_number(page.metadata.resource_version) < version_number(self._position)

    async def _list(self) -> Replaced[T]:
        """Reads all pages. They show one moment, and its resourceVersion becomes the position."""
        self._position = ""
        objects: list[T] = []
        metadata, limit = ListMeta(), self._pace.page_size
        while True:
            page = await self._api.list_page(
                self._resource, limit=limit, continue_=metadata.continue_, **self._selection
            )
            # After a page of fewer, large objects the next one is likely to be of such, too.
            found = len(page.items)
            metadata, limit = page.metadata, min(found + found // 4 + 1, self._pace.page_size)
            for item in page.items:
                self._trim(item)
            objects += page.items
            if not metadata.continue_:
                self._position = metadata.resource_version
                return Replaced(tuple(objects), metadata.resource_version)

    async def _watch(self) -> AsyncGenerator[Change[T], None]:
        """Yields what one watch shows, and moves the position with it."""
        events = self._api.watch(
            self._resource,
            resource_version=self._position,
            timeout_seconds=self._pace.watch_timeout_seconds,
            silent_seconds=self._pace.silent_seconds,
            **self._selection,
        )
        async with aclosing(events) as open_events:
            async for event in open_events:
                if isinstance(event, Opened):
                    if self._is_away:
                        yield Resumed()
                    self._is_away = False
                    continue
                self._backoff.reset()
                self._is_silent = False
                version, change = _change(event)
                self._position = version or self._position
                if change is not None:
                    yield change


def _wished_delay(problem: Exception | None) -> float:
    return (problem.retry_after_seconds or 0.0) if isinstance(problem, ApiError) else 0.0


def _change(
    event: Added[T] | Modified[T] | Deleted[T] | Bookmark,
) -> tuple[str, ObjectApplied[T] | ObjectRemoved[T] | None]:
    match event:
        case Bookmark(version):
            return version, None
        case Added(found) | Modified(found):
            return _version(found), ObjectApplied(found)
        case Deleted(found):
            return _version(found), ObjectRemoved(found)


def _version(found: Object) -> str:
    metadata: ObjectMeta | None = getattr(found, "metadata", None)
    return metadata.resource_version if metadata else ""
