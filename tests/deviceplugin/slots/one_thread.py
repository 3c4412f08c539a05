"""Every order of events, up to a random number generator: whoever waits for a peer, a disk or the time waits here."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class Process:
    """Everything that tasks of it start, also tasks and work for the disk, ends when it is killed."""

    def __init__(self) -> None:
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self._context = copy_context()
        self._context.run(_PROCESS.set, self)

    def run(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return asyncio.get_running_loop().create_task(work, context=self._context.copy())

    def live(self, work: Coroutine[Any, Any, None]) -> None:
        """For as long as the process; what it raises ends the whole run."""
        self.run(work).add_done_callback(_fail)

    async def kill(self) -> None:
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class _Disk(ThreadPoolExecutor):
    """Has begun whatever it is given, so that nobody can call it back, and does it when it is told to."""

    def __init__(self) -> None:
        super().__init__(max_workers=1)
        self.waiting: list[tuple[Process | None, Future[Any], Callable[[], Any]]] = []
        self.hangs = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        self.waiting.append((_PROCESS.get(), future, lambda: fn(*args, **kwargs)))
        return future

    def work(self, position: int) -> None:
        _, future, job = self.waiting.pop(position)
        try:
            future.set_result(job())
        except BaseException as error:
            future.set_exception(error)

    def lose(self, process: Process) -> None:
        self.waiting = [entry for entry in self.waiting if entry[0] is not process]


class OneThread(asyncio.SelectorEventLoop):
    """An event loop whose time stands still until `advance`, with gates that `turn` waits at."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random = random
        self.seconds = 1000.0
        self.disk = _Disk()
        self.failure: BaseException | None = None
        """What the first task raised that was nobody's to await."""
        self._gates: list[asyncio.Future[None]] = []
        self.set_default_executor(self.disk)
        self.set_task_factory(_owned_task)

    def time(self) -> float:
        return self.seconds

    async def turn(self) -> None:
        """Anything may happen before this returns."""
        gate = self.create_future()
        self._gates.append(gate)
        await gate

    def advance(self, seconds: float) -> None:
        self.seconds += seconds

    def step(self) -> bool:
        """One of those who wait goes on; False when nobody waits. Raises what a process failed with."""
        if self.failure is not None:
            raise self.failure
        self._gates = [gate for gate in self._gates if not gate.done()]
        gates, jobs = len(self._gates), 0 if self.disk.hangs else len(self.disk.waiting)
        if not gates + jobs:
            return False
        chosen = self.random.randrange(gates + jobs)
        if chosen < gates:
            self._gates.pop(chosen).set_result(None)
        else:
            self.disk.work(chosen - gates)
        return True

    async def kill(self, process: Process) -> None:
        self.disk.lose(process)
        await process.kill()


def _fail(task: asyncio.Task[None]) -> None:
    loop = task.get_loop()
    if not task.cancelled() and isinstance(loop, OneThread):
        loop.failure = loop.failure or task.exception()


def _owned_task(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, T] | Generator[Any, None, T],
    context: Context | None = None,
) -> asyncio.Task[T]:
    process = (context or copy_context()).get(_PROCESS)
    task = asyncio.Task(work, loop=loop, context=context)
    if process is not None:
        process.tasks[task] = None
        task.add_done_callback(lambda done: process.tasks.pop(done, None))
    return task
