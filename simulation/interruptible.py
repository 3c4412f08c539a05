"""Runs a command until it ends or a signal comes, and answers the signal in order (edge)."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, `kill`, and the terminal's window being closed."""
INTERRUPTED = 130


def run_until_signal(work: Coroutine[None, None, T]) -> T | None:
    """Returns the result; None when a signal came. By then the work has stopped everything it started.

    Further signals do not cut that short, and are ignored from then on.
    """
    result = asyncio.run(_until_signal(work))
    if result is None:
        # The interpreter takes handlers back before it is gone; what is ignored stays ignored.
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
    return result


async def _until_signal(work: Coroutine[None, None, T]) -> T | None:
    running = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        if not interrupted:
            interrupted = True
            running.cancel()

    def heard(*_: object) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(interrupt)

    # The loop takes its handlers back when it closes: a late signal would still kill the process.
    for number in SIGNALS:
        signal.signal(number, heard)
    try:
        return await running
    except asyncio.CancelledError:
        return None
