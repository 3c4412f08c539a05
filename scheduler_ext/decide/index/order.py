"""Keeps nodes in the order in which they would be taken."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping

from scheduler_ext.decide.score import Preference

FEW = 100
"""Up to this many changed nodes are inserted one by one; more of them are sorted in at once."""


class Order:
    """Preferences in ascending order, one for each node."""

    def __init__(self, preferences: Iterable[Preference] = ()) -> None:
        """Sorts the preferences. This costs little if they are nearly in order already."""
        self._sorted = sorted(preferences)
        self._of = {each[2]: each for each in self._sorted}

    def copy(self) -> "Order":
        """Returns a copy, which costs much less than sorting again."""
        made = Order()
        made._of, made._sorted = self._of.copy(), self._sorted.copy()
        return made

    def __len__(self) -> int:
        return len(self._sorted)

    def __iter__(self) -> Iterator[Preference]:
        return iter(self._sorted)

    def put(self, changes: Mapping[str, Preference | None]) -> None:
        """Inserts or moves nodes; None removes a node."""
        if len(changes) > FEW:
            self._put_many(changes)
            return
        for name, new in changes.items():
            old = self._of.pop(name, None)
            if new is not None:
                self._of[name] = new
            if old != new:
                self._move(old, new)

    def _put_many(self, changes: Mapping[str, Preference | None]) -> None:
        left = [old for name in changes if (old := self._of.pop(name, None)) is not None]
        if left:
            # Usually these come first, and the order behind them stays as it is.
            end = bisect_left(self._sorted, max(left)) + 1
            self._sorted[:end] = [each for each in self._sorted[:end] if each[2] not in changes]
        come = [new for new in changes.values() if new is not None]
        if come:
            self._of |= {new[2]: new for new in come}
            self._sorted += come
            # The first part is sorted, and often the second; `sort` makes use of that.
            self._sorted.sort()

    def _move(self, old: Preference | None, new: Preference | None) -> None:
        if old is not None:
            del self._sorted[bisect_left(self._sorted, old)]
        if new is not None:
            insort(self._sorted, new)
