"""Chooses how this node allocates, and remembers what the next daemon needs for that (edge)."""

import asyncio
import logging
from functools import partial

from deviceplugin.allocation.sources import AllocationSources
from deviceplugin.mode.trial import ChosenMode, choose_allocation, confirm
from deviceplugin.own_threads import OwnThreads
from deviceplugin.records.memory import Memory, memory_of, why_foreign
from deviceplugin.records.memory_file import MemoryFile
from deviceplugin.records.pod_resources import PodResources
from deviceplugin.slots.files import SlotFiles
from proto.annotations.node_allocation import AllocationMode

log = logging.getLogger(__name__)

_MEMORY_SECONDS = 0.2
"""Seconds between two writes: in a burst many pods share one."""


class RememberedMode:
    """`mode` is None until it is chosen."""

    def __init__(self, sources: AllocationSources, *, slots: SlotFiles, pod_resources: PodResources) -> None:
        self._sources = sources
        self._own = sources.own
        self._gpus = sources.gpus
        self._changes = sources.changes
        self._slots = slots
        self._pod_resources = pod_resources
        self._file = MemoryFile(sources.settings.cdi_directory)
        self._thread = OwnThreads("memory")
        self._problem = ""
        self.mode: AllocationMode | None = None

    async def choose(self) -> ChosenMode:
        """Chooses how to allocate; until then nothing is reported or served."""
        memory = await self._thread.call(self._file.read)
        boot = await self._thread.call(self._file.boot)
        chosen = await choose_allocation(
            *(self._sources, self._slots, self._pod_resources), recall=lambda: self._recalled(memory, boot)
        )
        self.mode = chosen.mode
        log.info("%s", chosen.sentence)
        if chosen.memory is not None:
            known = f"{len(chosen.memory.pods)} pods are remembered, others are refused"
            log.warning(
                "the API server is unreachable: until it answers, the state of this node's last daemon is used; %s",
                known,
            )
            self._own.recall(chosen.memory.pods)
        self._changes.announce()
        return chosen

    async def confirm(self, chosen: ChosenMode) -> None:
        """Returns once the Node confirms what was chosen by memory. Raises ModeOutdated and SlotsUnsupported."""
        if chosen.memory is not None:
            await confirm(self._sources, chosen, chosen.memory)

    def _recalled(self, memory: Memory | None, boot: str) -> Memory | None:
        """Returns the memory; None before the GPUs are known, and if it is of another node or time."""
        gpus = self._gpus.inventory.physical
        if memory is None or not gpus:
            return None
        problem = why_foreign(memory, self._own.name, boot, gpus)
        if problem and problem != self._problem:
            self._problem = problem
            log.warning("%s %s; it is not used", self._file.path, problem)
        return None if problem else memory

    async def keep(self) -> None:
        """Writes what the next daemon needs if the API server is unreachable."""
        boot = await self._thread.call(self._file.boot)
        written: Memory | None = None
        while True:
            change = self._changes.next()
            gpus = self._gpus.inventory.physical
            if self._own.node is not None and self.mode is not None and self._own.pods_known and gpus:
                memory = memory_of(self._own.node, boot, self.mode, gpus, self._own.pods.values())
                if memory != written:
                    is_written = await self._thread.call(partial(self._file.write, memory))
                    written = memory if is_written else None
                    await asyncio.sleep(_MEMORY_SECONDS)
            await change.wait()
