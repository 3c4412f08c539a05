"""Tasks that have a parent: no task outlives the object, or the call, that started it."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Tasks:
    """The tasks of one object. What a task raises goes to the caller that awaits it."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def end(self, grace_seconds: float = 0.0) -> None:
        """Cancels the tasks that still run after this time, and returns when all have ended."""
        if self._running and grace_seconds:
            await asyncio.wait(tuple(self._running), timeout=grace_seconds)
        # Cancelled tasks may have started others meanwhile.
        while running := tuple(self._running):
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


class Shared(Generic[T]):
    """One result for several callers. Callers that arrive while the work runs share the next result, so no result is
    older than its question.
    """

    def __init__(self, work: Callable[[], Awaitable[T]], pause: Callable[[], float] = lambda: 0.0) -> None:
        """`pause` is called when the previous work has ended and returns the seconds until the next begins. Callers
        that arrive before then share that result.
        """
        self._work = work
        self._pause = pause
        self._tasks = Tasks()
        self._current: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def result(self) -> T:
        """Returns the result, or raises what the work raises. A caller that gives up does not cancel the work for the
        others.
        """
        if self._next is None:
            self._next = self._tasks.begin(self._after(self._current))
            # All its callers may have given up by then.
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
    """Runs all until one ends, cancels the others and waits for them. Raises what that one raises."""
    tasks = Tasks()
    try:
        ended, _ = await asyncio.wait([tasks.begin(work) for work in works], return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()
    finally:
        await tasks.end()
