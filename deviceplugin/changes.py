"""Wakes all that wait for something to change."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import TypeVar

T = TypeVar("T")


class Changes:
    """One for all changes of a daemon: each that is woken looks whether anything changed for it."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def announce(self) -> None:
        changed, self._event = self._event, asyncio.Event()
        changed.set()

    def next(self) -> asyncio.Event:
        """Set by the next change. Take it before looking, so that no change is missed."""
        return self._event

    async def of(self, look: Callable[[], T]) -> AsyncGenerator[T, None]:
        """What `look` sees now, and again whenever that is something else."""
        last: T | None = None
        while True:
            following = self.next()
            seen = look()
            if seen != last:
                last = seen
                yield seen
            else:
                await following.wait()
