"""Tasks that have a parent: none outlives the object, or the call, that began it."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Tasks:
    """Those of one object. What a task raises is for the caller that awaits it."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def end(self, grace_seconds: float = 0.0) -> None:
        """Cancels what still runs after so long, and returns when all have ended."""
        if self._running and grace_seconds:
            await asyncio.wait(tuple(self._running), timeout=grace_seconds)
        # Those that are cancelled may have begun others meanwhile.
        while running := tuple(self._running):
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


class Shared(Generic[T]):
    """One result for several callers: those that come while the work is under way share the next one, so that no result
    is older than its question.
    """

    def __init__(self, work: Callable[[], Awaitable[T]], pause: Callable[[], float] = lambda: 0.0) -> None:
        """`pause` is asked, once the work before has ended, in how many seconds to begin; who comes until then shares
        the result too.
        """
        self._work = work
        self._pause = pause
        self._tasks = Tasks()
        self._current: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def result(self) -> T:
        """Raises what the work raises. A caller that gives up leaves it to the others."""
        if self._next is None:
            self._next = self._tasks.begin(self._after(self._current))
            # Its callers may all have given up by then.
            self._next.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._next)

    async def end(self) -> None:
        await self._tasks.end()

    async def _after(self, current: "asyncio.Task[T] | None") -> T:
        if current is not None:
            await asyncio.wait([current])
        await asyncio.sleep(max(0.0, self._pause()))
        self._current, self._next = self._next, None
        return await self._work()


async def until_first(*works: Coroutine[Any, Any, object]) -> None:
    """Until one of them ends; the others are cancelled, and have ended. Raises what that one raises."""
    tasks = Tasks()
    try:
        ended, _ = await asyncio.wait([tasks.begin(work) for work in works], return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()
    finally:
        await tasks.end()
