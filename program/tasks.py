"""Tasks that have a parent: no task outlives the object, or the call, that started it. SIGUSR1 shows their stacks."""

import asyncio
import faulthandler
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from types import FrameType
from typing import Any, Generic, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)


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
            try:
                # A task that is cancelled before its first step does not clean up.
                await asyncio.sleep(0)
            finally:
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


_STANDARD_ERROR = 2
"""The descriptor: `sys.stderr` may be an object without one."""
_FRAMES = ("cr_frame", "gi_frame", "ag_frame")
_AWAITED = ("cr_await", "gi_yieldfrom", "ag_await")


def show_stacks_on_signal() -> None:
    """Applies to the running loop. The threads are written as they are, even when the loop is stuck."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, _log_tasks)
    faulthandler.enable(_STANDARD_ERROR)
    # The handler of the loop comes after it.
    faulthandler.register(signal.SIGUSR1, _STANDARD_ERROR, chain=True)


def _log_tasks() -> None:
    for task in asyncio.all_tasks():
        places = " > ".join(f"{frame.f_code.co_qualname}:{frame.f_lineno}" for frame in _frames(task.get_coro()))
        log.warning("task %s waits in %s", task.get_name(), places)


def _frames(awaited: Any) -> Iterator[FrameType]:
    """Yields the frames of a coroutine and of what it awaits."""
    while awaited is not None:
        frame = next((found for name in _FRAMES if (found := getattr(awaited, name, None))), None)
        if frame is not None:
            yield frame
        awaited = next((found for name in _AWAITED if (found := getattr(awaited, name, None))), None)
