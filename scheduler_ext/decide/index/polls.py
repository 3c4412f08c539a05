"""Searches for room for waiting pods, a little at a time.

A search continues where the last one for the same shape ended. After a search without success, only nodes that changed
since are judged again.
"""

from dataclasses import dataclass, field

from scheduler_ext.decide.index.node_index import Candidates
from scheduler_ext.decide.index.ranking import Shape
from scheduler_ext.decide.index.verdicts import Judge
from scheduler_ext.decide.unresolvable import Unfit

MOST_SHAPES = 10_000
MOST_UNDER_WAY = 64
"""Searches that can be continued. Each has a place for every node. Results of further ones are forgotten."""


@dataclass(slots=True)
class _Search:
    """One search. `seen` is the number of the last change taken into account; `left` are nodes still to be judged."""

    seen: int = 0
    left: dict[str, None] = field(default_factory=dict)
    judge: Judge | None = None
    """Only while the search goes on: its memory is not worth keeping for a few nodes."""


class Room:
    """Room for the shapes of waiting pods. It does not change what `/filter` knows of shapes."""

    def __init__(self, candidates: Candidates) -> None:
        self._candidates = candidates
        self._searches: dict[Shape, _Search] = {}
        self._under_way: dict[Shape, int] = {}
        """The number of the last look at each shape, in ascending order."""
        self._looks = 0

    def __len__(self) -> int:
        """The number of shapes that are remembered."""
        return len(self._searches)

    def keep(self, shapes: set[Shape]) -> None:
        """Forget all other shapes."""
        self._searches = {shape: search for shape, search in self._searches.items() if shape in shapes}
        self._under_way = {shape: look for shape, look in self._under_way.items() if shape in shapes}

    def look(self, shape: Shape, effort: int) -> bool | None:
        """Whether such a pod fits on any node. None if the effort did not suffice to tell.

        `effort` is as `Judge` counts it. The pod itself holds nothing.
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
        """Whether its search may be kept. A shape that was not looked at since every other one belongs to pods that are
        gone.
        """
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
