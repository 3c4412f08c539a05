"""Wakes everybody who waits for something to change."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import TypeVar

T = TypeVar("T")


class News:
    """One for all changes of a daemon: whoever is woken looks for what concerns him."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def tell(self) -> None:
        told, self._event = self._event, asyncio.Event()
        told.set()

    def next(self) -> asyncio.Event:
        """Set by the next change. Take it before looking, so that no change is missed."""
        return self._event

    async def changes(self, look: Callable[[], T]) -> AsyncGenerator[T, None]:
        """What `look` sees now, and again whenever that is something else."""
        told: T | None = None
        while True:
            following = self.next()
            seen = look()
            if seen != told:
                told = seen
                yield seen
            else:
                await following.wait()
