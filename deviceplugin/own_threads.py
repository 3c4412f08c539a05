"""Threads for calls to a driver or a disk that may never return. They do not keep the process from ending."""

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class OwnThreads:
    """Runs blocking functions in the order in which they come, at most `most` at a time.

    One owner's calls that hang hold up no other owner's. The threads end with the process and are never joined.
    """

    def __init__(self, name: str, most: int = 1) -> None:
        self._name = name
        self._most = most
        self._begun = 0
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()

    async def call(self, function: Callable[[], T]) -> T:
        """Returns the function's result, or raises its error. Cancelling the wait drops a call that has not begun."""
        return await asyncio.wrap_future(self.submit(function))

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Queues the function, to be run once its turn comes."""
        future: Future[T] = Future()
        self._work.put((function, future))
        if self._begun < self._most:
            self._begun += 1
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        return future

    def _run(self) -> None:
        while True:
            function, future = self._work.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)


class UnjoinedExecutor(ThreadPoolExecutor):
    """An executor for an event loop. The loop's own pool would wait at its end for every call that has begun."""

    def __init__(self, most: int) -> None:
        super().__init__(max_workers=most)
        self._threads_of_it = OwnThreads("pool", most)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return self._threads_of_it.submit(partial(fn, *args, **kwargs))
