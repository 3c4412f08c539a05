"""Wakes all tasks that wait for a change."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class Changes:
    """One signal for all changes of a daemon: each woken task checks what changed for it."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def announce(self) -> None:
        changed, self._event = self._event, asyncio.Event()
        changed.set()

    def next(self) -> asyncio.Event:
        """Returns what the next change sets. Take it before looking, so that no change is missed."""
        return self._event

    async def of(self, look: Callable[[], T]) -> AsyncGenerator[T, None]:
        """Yields what `look` returns now, and again whenever it differs."""

        async def looked() -> T:
            return look()

        async for seen in self.answers(looked):
            yield seen

    async def answers(self, look: Callable[[], Awaitable[T]]) -> AsyncGenerator[T, None]:
        """Yields what `look` answers now, and again whenever it differs."""
        last: T | None = None
        while True:
            change = self.next()
            seen = await look()
            if seen != last:
                last = seen
                yield seen
            else:
                await change.wait()
