"""Starts of containers, one at a time for the same replica ids (edge)."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from weakref import WeakValueDictionary

from deviceplugin.plugin_calls import CannotAllocate
from program.tasks import Tasks

log = logging.getLogger(__name__)


class Starts:
    """A start goes on after kubelet gave up waiting: a thread that hangs on a disk cannot be ended, and must not empty
    the folder of a container that was started meanwhile.
    """

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[frozenset[str], asyncio.Lock] = WeakValueDictionary()
        self._running = Tasks()

    async def run(self, ids: Collection[str], start: Callable[[], Awaitable[str]], until: float | None = None) -> None:
        """Runs `start`, which returns why the container must not start, or an empty text. `until` is a time of the
        loop's clock. Raises CannotAllocate.
        """
        try:
            async with asyncio.timeout_at(until):
                refusal = await asyncio.shield(self._running.begin(self._alone(frozenset(ids), start)))
        except TimeoutError:
            refusal = f"the files for {', '.join(sorted(ids))} were not written in time: a disk of this node hangs"
        if refusal:
            log.warning("PreStartContainer refused: %s", refusal)
            raise CannotAllocate(refusal)

    async def end(self) -> None:
        """Ends them; no container starts after this."""
        await self._running.end()

    async def _alone(self, ids: frozenset[str], start: Callable[[], Awaitable[str]]) -> str:
        async with self._locks.setdefault(ids, asyncio.Lock()):
            return await start()
