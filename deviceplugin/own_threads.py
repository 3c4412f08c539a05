"""Threads for calls that may never return: of a driver, of a disk. They keep no one from leaving the process."""

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

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
        """What the function returns or raises. Cancelling the wait drops a call that has not begun."""
        if self._begun < self._most:
            self._begun += 1
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        future: Future[T] = Future()
        self._work.put((function, future))
        return await asyncio.wrap_future(future)

    def _run(self) -> None:
        while True:
            function, future = self._work.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)
