"""Counts and times kubelet's calls."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from deviceplugin.allocator import CannotAllocate
from deviceplugin.metrics.metrics import KubeletCall, Metrics, Outcome


@dataclass(frozen=True, slots=True)
class KubeletCalls:
    """The calls about one resource. `strategy` is how its containers are given their GPUs."""

    metrics: Metrics
    strategy: str

    @contextmanager
    def timed(self, call: KubeletCall) -> Iterator[None]:
        """Times what is done in the block."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.metrics.called(call, time.perf_counter() - began)

    @contextmanager
    def counted(self, call: KubeletCall) -> Iterator[None]:
        """Times what is done in the block, and counts how it ends."""
        outcome = Outcome.FAILED
        try:
            with self.timed(call):
                yield
            outcome = Outcome.OK
        except CannotAllocate:
            outcome = Outcome.REFUSED
            raise
        finally:
            self.metrics.allocated(call, outcome, self.strategy)
