"""Keeps one kind of objects current: a paged list, then watches that resume where they ended."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Generic, TypeVar

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


@dataclass(frozen=True, slots=True)
class ObjectApplied(Generic[T]):
    """Added or modified."""

    object: T


@dataclass(frozen=True, slots=True)
class ObjectRemoved(Generic[T]):
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


@dataclass(slots=True)
class _Position:
    """The resourceVersion at which the next watch starts; None causes a list first."""

    resource_version: str | None = None


async def reflect(
    api: ApiServer,
    resource: Resource[T],
    *,
    field_selector: str = "",
    label_selector: str = "",
    page_size: int = 500,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    jitter: Callable[[], float] = random.random,
    namespace: str = "",
    watch_timeout_seconds: int = 300,
    silent_seconds: float = SILENT_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    trim: Callable[[T], None] = lambda _: None,
) -> AsyncGenerator[Replaced[T] | ObjectApplied[T] | ObjectRemoved[T] | Interrupted | Resumed, None]:
    """Yields the objects, then every change to them, without end. It never raises for errors of the API server.

    A watch without events for `silent_seconds` is opened again at its position: its connection may be dead. If it had
    shown nothing at all, not even a bookmark, everything is listed: the API server's own watch may be stuck. `trim` may
    remove unused fields from a listed object, because a list is held until its last page has arrived.

    Before a watch is opened again, a list of one object shows whether the API server has gone back in its history, as
    after its etcd was restored from a backup. It would accept a watch from a version that it has not reached, and send
    nothing (kubernetes/kubernetes#107457). Then everything is listed. A single object, which its name selects, is
    listed every time.
    """
    selection = {"namespace": namespace, "field_selector": field_selector, "label_selector": label_selector}
    position = _Position()
    backoff = Backoff(jitter)
    is_away = False
    while True:
        began, is_silent = clock(), True
        try:
            version = position.resource_version
            if version is not None and await _is_outdated(api, resource, version, namespace, field_selector):
                position.resource_version = None
            if position.resource_version is None:
                yield await _list(api, resource, page_size, selection, position, trim=trim)
                began, is_away = clock(), False
            events = api.watch(
                resource,
                resource_version=position.resource_version or "",
                timeout_seconds=watch_timeout_seconds,
                silent_seconds=silent_seconds,
                **selection,
            )
            async with aclosing(events) as open_events:
                async for event in open_events:
                    if isinstance(event, Opened):
                        if is_away:
                            yield Resumed()
                        is_away = False
                        continue
                    backoff.reset()
                    is_silent = False
                    version, change = _change(event)
                    position.resource_version = version or position.resource_version
                    if change is not None:
                        yield change
            problem: Exception | None = None
        except (ApiError, ApiUnreachable) as error:
            problem = error
        has_settled = clock() - began >= SETTLED_SECONDS
        if has_settled:
            backoff.reset()
        if isinstance(problem, Gone) or (problem is None and has_settled and is_silent):
            position.resource_version = None
        if _may_go_on_at_once(problem, backoff):
            backoff.failures += 1
            continue
        delay, is_away = backoff.next_delay(_wished_delay(problem)), True
        yield Interrupted(str(problem or "the API server ended the watch at once"), delay)
        await sleep(delay)


async def _is_outdated(
    api: ApiServer, resource: Resource[T], version: str, namespace: str, field_selector: str
) -> bool:
    """Returns whether a watch from this version may miss changes. Raises ApiError or ApiUnreachable.

    The page has no selector: an API server without a suitable index would read all objects to find one that matches.
    """
    if field_selector.startswith("metadata.name="):
        return True
    page = await api.list_page(resource, namespace=namespace, limit=1)
    return version_number(page.metadata.resource_version) < version_number(version)


def _may_go_on_at_once(problem: Exception | None, backoff: Backoff) -> bool:
    """Returns whether this is a failure. An ended watch and an expired position are normal, unless they repeat without
    progress.
    """
    return backoff.failures == 0 and (problem is None or isinstance(problem, Gone))


def _wished_delay(problem: Exception | None) -> float:
    return (problem.retry_after_seconds or 0.0) if isinstance(problem, ApiError) else 0.0


async def _list(
    api: ApiServer,
    resource: Resource[T],
    page_size: int,
    selection: dict[str, str],
    position: _Position,
    *,
    trim: Callable[[T], None],
) -> Replaced[T]:
    """Reads all pages. They show one moment, and its resourceVersion becomes the position."""
    objects: list[T] = []
    metadata, limit = ListMeta(), page_size
    while True:
        page = await api.list_page(resource, limit=limit, continue_=metadata.continue_, **selection)
        # After a page of fewer, large objects the next one is likely to be of such, too.
        found = len(page.items)
        metadata, limit = page.metadata, min(found + found // 4 + 1, page_size)
        for item in page.items:
            trim(item)
        objects += page.items
        if not metadata.continue_:
            position.resource_version = metadata.resource_version
            return Replaced(tuple(objects), metadata.resource_version)


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
