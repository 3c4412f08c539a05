"""Writes what every thread and task waits for, on SIGUSR1; and the threads, where the process crashes (edge)."""

import asyncio
import faulthandler
import logging
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

log = logging.getLogger(__name__)

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
