"""Turns at a bounded rate for many callers. A caller that requests many delays no other by more than one turn."""

import asyncio
from collections import deque
from collections.abc import Hashable
from math import inf

from program.tasks import Tasks


class FairTurns:
    """Gives one turn to each waiting caller, in rotation."""

    def __init__(self, *, per_second: float, burst: int) -> None:
        """Both values are above 0; `burst` is how many turns may be taken at once after a pause."""
        self._interval_seconds = 1 / per_second
        self._burst_seconds = burst / per_second
        self._next = -inf
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}
        self._tasks = Tasks()
        self._giving: asyncio.Task[None] | None = None

    async def take(self, caller: Hashable) -> None:
        """Returns when it is the caller's turn. A caller that gives up uses none."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(turn)
        if self._giving is None or self._giving.done():
            self._giving = self._tasks.begin(self._give())
        await turn

    async def end(self) -> None:
        await self._tasks.end()

    async def _give(self) -> None:
        now = asyncio.get_running_loop().time
        while self._waiting:
            caller = next(iter(self._waiting))
            turns = self._waiting.pop(caller)
            turn = turns.popleft()
            if turns:
                self._waiting[caller] = turns
            if turn.done():
                continue
            self._next = max(self._next, now() - self._burst_seconds) + self._interval_seconds
            if self._next > now():
                await asyncio.sleep(self._next - now())
            if not turn.done():
                turn.set_result(None)
