"""Keeps the spec of the slots as small as possible: a container runtime reads all of it after every change.

While one daemon replaces another, both write it. So what the other process wrote stays as long as a container that is
about to be created may need it.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

from deviceplugin.container.cdi_files import CannotWriteSpec
from deviceplugin.slots.files import SlotFiles, Spec
from deviceplugin.slots.slot import KEPT_SECONDS, Start, over
from program.tasks import Shared
from proto.kubernetes.objects import Pod

_PAUSE_SECONDS = 0.02
"""Seconds between two writes: in a burst many slots share one."""
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
        self._own: frozenset[str] = frozenset()
        """Slots of the last write."""
        self._foreign: dict[str, float] = {}
        """The times when slots that another process wrote were seen first, in seconds of the monotonic clock."""
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
            # Any error drops them: what cannot be written must not be in the next write, which is for other containers.
            self._drop(frozenset(starts))
            raise

    async def run(self) -> None:
        """Removes entries that are no longer needed, until cancelled."""
        with suppress(CannotWriteSpec):
            await self._written.result()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await self.collect()

    async def collect(self) -> None:
        """Removes entries that are not needed any more, once. A write that fails is tried again with the next."""
        now = self._monotonic()
        is_old = any(now - since >= KEPT_SECONDS for since in self._foreign.values())
        if is_old or over(self._starts, self._pods(), now):
            with suppress(CannotWriteSpec):
                await self._written.result()

    async def end(self) -> None:
        await self._written.end()

    async def _rewrite(self) -> None:
        self._drop(over(self._starts, self._pods(), self._monotonic()))
        await asyncio.to_thread(self._write, dict(self._specs), self._monotonic())
        self._written_at = self._monotonic()

    def _write(self, specs: Mapping[str, Spec], now: float) -> None:
        with self._files.exclusive():
            found = {slot: spec for slot, spec in self._files.read().items() if slot not in self._own | specs.keys()}
            self._foreign = {slot: self._foreign.get(slot, now) for slot in found}
            others = [spec for slot, spec in found.items() if now - self._foreign[slot] < KEPT_SECONDS]
            # Ours last, for what all slots have in common is taken from the last.
            self._files.write([*others, *specs.values()])
            self._own = frozenset(specs)

    def _drop(self, slots: frozenset[str]) -> None:
        for slot in slots:
            self._specs.pop(slot, None)
            self._starts.pop(slot, None)
