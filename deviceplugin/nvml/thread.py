"""The one thread that calls the driver. A call that never returns keeps no one from leaving the process."""

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class NvmlThread:
    """Runs blocking functions one after the other. It ends with the process and is never joined."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def call(self, function: Callable[[], T]) -> T:
        """What the function returns or raises. Cancelling the wait drops a call that has not begun."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)
            self._thread.start()
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
