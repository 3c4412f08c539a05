"""Gives long searches turns, so that a tenant with many searches delays mostly itself."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar, cast

from program.tasks import Tasks
from scheduler_ext.decide.effort import SteppedSearch

T = TypeVar("T")

SHARE = 0.5
"""Share of the time for searches of one namespace's pods."""
AHEAD_SECONDS = 0.25
"""The time by which a namespace may be ahead of its share: after a pause it may use half a second at once."""
MOST_NAMESPACES = 1_000
"""Namespaces whose time is remembered. Beyond this, those without a debt of time are forgotten."""


class _WaitingSearch(NamedTuple):
    steps: Iterator[None]
    ended: asyncio.Future[None]


class SearchTurns:
    """Runs one step of one search at a time and takes namespaces in turn. In each, the oldest search comes first."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._waiting: dict[str, deque[_WaitingSearch]] = {}
        """The waiting searches by namespace; the next namespace in turn comes first."""
        self._spent: dict[str, float] = {}
        """The time at which each namespace has paid off the time of its searches."""
        self._tasks = Tasks()
        self._working: asyncio.Task[None] | None = None

    async def take(self, namespace: str, steps: Iterator[None]) -> None:
        """Waits until the search ends, or the namespace has used up its share.

        The first step runs at once: most searches have no other.
        """
        if self._made(namespace, steps):
            return
        ended = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(namespace, deque()).append(_WaitingSearch(steps, ended))
        if self._working is None or self._working.done():
            self._working = self._tasks.begin(self._work())
        await ended

    async def end(self) -> None:
        await self._tasks.end()

    async def _work(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)
            namespace = next(iter(self._waiting))
            searches = self._waiting.pop(namespace)
            steps, ended = searches[0]
            try:
                over = ended.done() or self._made(namespace, steps)
            except Exception as error:
                over = True
                ended.set_exception(error)
            if over:
                searches.popleft()
                if not ended.done():
                    ended.set_result(None)
            if searches:
                self._waiting[namespace] = searches

    def _made(self, namespace: str, steps: Iterator[None]) -> bool:
        """Runs one step. Returns whether it was the last."""
        began = self._monotonic()
        spent = max(self._spent.get(namespace, began), began)
        ended = next(steps, steps) is steps
        if len(self._spent) >= MOST_NAMESPACES:
            self._spent = {name: until for name, until in self._spent.items() if until > began}
        self._spent[namespace] = spent + (self._monotonic() - began) / SHARE
        return ended or (spent - began) * SHARE > AHEAD_SECONDS


async def giving_way(search: SteppedSearch[T]) -> T:
    """Returns the search's result. Between its steps others get their answers."""
    while True:
        try:
            next(search)
        except StopIteration as end:
            return cast("T", end.value)
        await asyncio.sleep(0)
