"""Whether there is room for pods that wait, found out a little at a time.

A look goes on where the last one for the same shape ended, and where that found no room, only nodes that have changed
since are judged again.
"""

from dataclasses import dataclass, field

from scheduler_ext.scheduling.candidates import Candidates
from scheduler_ext.scheduling.hopeless import Unfit
from scheduler_ext.scheduling.judging import Judge
from scheduler_ext.scheduling.ranking import Shape

MOST_SHAPES = 10_000
MOST_UNDER_WAY = 64
"""Searches that go on where they ended: each has a place for every node. What another one found out is forgotten."""


@dataclass(slots=True)
class _Search:
    """`seen` is the number of the last change that was taken into account; `left` are nodes still to be judged."""

    seen: int = 0
    left: dict[str, None] = field(default_factory=dict)
    judge: Judge | None = None
    """While it goes on; what it remembers is not worth keeping for a few nodes."""


class Room:
    """For the shapes of pods that wait. What `/filter` knows of shapes stays as it is."""

    def __init__(self, candidates: Candidates) -> None:
        self._candidates = candidates
        self._searches: dict[Shape, _Search] = {}
        self._under_way: dict[Shape, int] = {}
        """The number of the last look at each; the one looked at last comes last."""
        self._looks = 0

    def __len__(self) -> int:
        """How many shapes are remembered."""
        return len(self._searches)

    def keep(self, shapes: set[Shape]) -> None:
        """Forgets all others."""
        self._searches = {shape: search for shape, search in self._searches.items() if shape in shapes}
        self._under_way = {shape: look for shape, look in self._under_way.items() if shape in shapes}

    def look(self, shape: Shape, effort: int) -> bool | None:
        """Whether such a pod fits on any node; None if no more than about `effort` does not tell.

        `effort` as `Judge` counts it. The pod holds nothing itself.
        """
        if len(self._searches) >= MOST_SHAPES:
            self.keep(set())
        self._looks += 1
        search = self._searches.setdefault(shape, _Search())
        before = search.seen
        search.left.update(dict.fromkeys(self._candidates.changed_since(search.seen)))
        search.seen = self._candidates.last_change
        judge = search.judge = search.judge or self._candidates.judge(shape)
        until = judge.effort.made + effort
        while search.left:
            if judge.effort.made >= until:
                if not self._goes_on(shape):
                    self._searches[shape] = _Search(before)
                return None
            name = next(reversed(search.left))
            standing = self._candidates.standing(name)
            if standing is not None and not isinstance(judge.judge(standing), Unfit):
                self._drop(shape)
                self._candidates.has_room(shape, name)
                return True
            del search.left[name]
        search.judge = None
        self._under_way.pop(shape, None)
        return False

    def _goes_on(self, shape: Shape) -> bool:
        """Whether there is a place for it. One that was not looked at since each other was is of pods that are gone."""
        if shape not in self._under_way and len(self._under_way) >= MOST_UNDER_WAY:
            oldest = next(iter(self._under_way))
            if self._looks - self._under_way[oldest] <= MOST_SHAPES:
                return False
            self._drop(oldest)
        self._under_way.pop(shape, None)
        self._under_way[shape] = self._looks
        return True

    def _drop(self, shape: Shape) -> None:
        self._searches.pop(shape, None)
        self._under_way.pop(shape, None)
