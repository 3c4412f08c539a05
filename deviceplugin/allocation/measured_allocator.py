"""An allocator whose answers are counted and timed."""

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager

from deviceplugin.allocator import Allocator, CannotAllocate
from deviceplugin.container.edits import ContainerEdits
from deviceplugin.metrics.metrics import KubeletCall, Metrics, Outcome
from proto.devices import Device


class MeasuredAllocator:
    """`strategy` is how the containers behind it are given their GPUs."""

    def __init__(self, allocator: Allocator, metrics: Metrics, strategy: str) -> None:
        self._allocator = allocator
        self._metrics = metrics
        self._strategy = strategy

    def devices(self) -> AsyncIterator[tuple[Device, ...]]:
        return self._allocator.devices()

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        with self._timed(KubeletCall.PREFER):
            return await self._allocator.prefer(available, must_include, size)

    async def allocate(self, ids: Sequence[str]) -> ContainerEdits:
        """Raises CannotAllocate."""
        with self._timed(KubeletCall.ALLOCATE), self._counted(KubeletCall.ALLOCATE):
            return await self._allocator.allocate(ids)

    @property
    def pre_start_required(self) -> bool:
        return self._allocator.pre_start_required

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Raises CannotAllocate."""
        with self._timed(KubeletCall.PRE_START), self._counted(KubeletCall.PRE_START):
            await self._allocator.pre_start(ids)

    @contextmanager
    def _timed(self, call: KubeletCall) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._metrics.called(call, time.perf_counter() - began)

    @contextmanager
    def _counted(self, call: KubeletCall) -> Iterator[None]:
        outcome = Outcome.FAILED
        try:
            yield
            outcome = Outcome.OK
        except CannotAllocate:
            outcome = Outcome.REFUSED
            raise
        finally:
            self._metrics.allocated(call, outcome, self._strategy)
