"""Finds the failures of a reading that may be chance, so that the earlier reading stays valid."""

from collections.abc import Hashable
from dataclasses import dataclass, field

from deviceplugin.nvml.calls import CallFailed
from deviceplugin.nvml.lanes import Hangs


@dataclass(slots=True)
class Doubts:
    """Failures of one reading, by what failed."""

    before: frozenset[Hashable] = frozenset()
    """Failures of the reading before."""
    now: set[Hashable] = field(default_factory=set)
    any_excused: bool = False

    def excuse(self, what: Hashable, failure: CallFailed | Hangs) -> bool:
        """Returns whether it may be chance: a call that failed once, a GPU that has been silent for a short time."""
        if isinstance(failure, Hangs):
            excused = not failure.is_lasting
        else:
            excused = failure.is_passing and what not in self.before
            self.now.add(what)
        self.any_excused = self.any_excused or excused
        return excused
