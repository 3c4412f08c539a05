"""The spec of the slots, kept as small as it can be: a container runtime reads all of it again after every change."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

from deviceplugin.allocation.slot_files import SlotFiles, Spec
from deviceplugin.allocation.slots import Start, over
from deviceplugin.container.cdi_files import CannotWriteSpec
from proto.kubernetes.objects import Pod

_PAUSE_SECONDS = 0.02
"""Between two writes: in a burst many slots share one."""
_LOOK_SECONDS = 5.0


class SlotSpecs:
    """The slots whose containers are about to be created. `pods`: those of the node, by UID."""

    def __init__(
        self,
        files: SlotFiles,
        pods: Callable[[], Mapping[str, Pod]],
        *,
        monotonic: Callable[[], float],
        pause_seconds: float = _PAUSE_SECONDS,
    ) -> None:
        self._files = files
        self._pods = pods
        self._monotonic = monotonic
        self._pause_seconds = pause_seconds
        self._specs: dict[str, Spec] = {}
        self._starts: dict[str, Start] = {}
        self._written_at = -pause_seconds
        self._current: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def put(self, specs: Mapping[str, Spec], starts: Mapping[str, Start]) -> None:
        """Returns when a container runtime can find them. Raises CannotWriteSpec; then they are not there."""
        # Last, for what all slots have in common is taken from the last.
        self._specs = {slot: spec for slot, spec in self._specs.items() if slot not in specs} | dict(specs)
        self._starts |= starts
        try:
            await self._written()
        except Exception:
            # Whatever it is: what cannot be written must not be in the next write, which is that of other containers.
            self._drop(frozenset(starts))
            raise

    async def run(self) -> None:
        """Until cancelled: what an earlier life left goes at once, what is over later."""
        with suppress(CannotWriteSpec):
            await self._written()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await self.collect()

    async def collect(self) -> None:
        """Once; a folder that cannot be written is tried again at the next write."""
        if over(self._starts, self._pods(), self._monotonic()):
            with suppress(CannotWriteSpec):
                await self._written()

    async def _written(self) -> None:
        """Whoever comes while one write is under way shares the next."""
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._current))
            # Its callers may all have given up by then.
            self._next.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._next)

    async def _after(self, current: "asyncio.Task[None] | None") -> None:
        if current is not None:
            await asyncio.wait([current])
        await asyncio.sleep(max(0.0, self._written_at + self._pause_seconds - self._monotonic()))
        self._current, self._next = self._next, None
        self._drop(over(self._starts, self._pods(), self._monotonic()))
        await asyncio.to_thread(self._write, tuple(self._specs.values()))
        self._written_at = self._monotonic()

    def _write(self, specs: tuple[Spec, ...]) -> None:
        self._files.clear()
        self._files.write(specs)

    def _drop(self, slots: frozenset[str]) -> None:
        for slot in slots:
            self._specs.pop(slot, None)
            self._starts.pop(slot, None)
