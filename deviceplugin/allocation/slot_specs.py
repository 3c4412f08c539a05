"""The spec of the slots, kept as small as it can be: a container runtime reads all of it again after every change."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

from deviceplugin.allocation.slot_files import SlotFiles, Spec
from deviceplugin.allocation.slots import Start, over
from deviceplugin.container.cdi_files import CannotWriteSpec
from program.tasks import Shared
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
        self._specs: dict[str, Spec] = {}
        self._starts: dict[str, Start] = {}
        self._written_at = -pause_seconds
        self._written = Shared(self._rewrite, lambda: self._written_at + pause_seconds - monotonic())

    async def put(self, specs: Mapping[str, Spec], starts: Mapping[str, Start]) -> None:
        """Returns when a container runtime can find them. Raises CannotWriteSpec; then they are not there."""
        # Last, for what all slots have in common is taken from the last.
        self._specs = {slot: spec for slot, spec in self._specs.items() if slot not in specs} | dict(specs)
        self._starts |= starts
        try:
            await self._written.result()
        except Exception:
            # Whatever it is: what cannot be written must not be in the next write, which is that of other containers.
            self._drop(frozenset(starts))
            raise

    async def run(self) -> None:
        """Until cancelled: what an earlier life left goes at once, what is over later."""
        with suppress(CannotWriteSpec):
            await self._written.result()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await self.collect()

    async def collect(self) -> None:
        """Once; a folder that cannot be written is tried again at the next write."""
        if over(self._starts, self._pods(), self._monotonic()):
            with suppress(CannotWriteSpec):
                await self._written.result()

    async def end(self) -> None:
        await self._written.end()

    async def _rewrite(self) -> None:
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
