"""Facts that become true while others work: a file, a peer's memory, an object of the API server."""

import asyncio
import inspect
import time
from collections.abc import Callable

LONGEST_SECONDS = 120.0
"""The deadline, which a busy machine meets too."""


async def until(fact: Callable[[], object]) -> None:
    """Returns once the fact, or what awaiting it yields, is true. TimeoutError is raised after the deadline."""
    began = time.monotonic()
    async with asyncio.timeout(LONGEST_SECONDS):
        while not await _value(fact()):  # noqa: ASYNC110 - the fact is elsewhere: a file, a peer's memory
            await asyncio.sleep(min(max((time.monotonic() - began) / 20, 0.01), 0.1))


async def _value(found: object) -> object:
    return await found if inspect.isawaitable(found) else found
