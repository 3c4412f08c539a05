"""Searches for room for waiting pods, a little at a time.

A search continues where the last one for the same shape ended. After a search without success, only nodes that changed
since are judged again.
"""

from dataclasses import dataclass, field

from scheduler_ext.decide.effort import make_room
from scheduler_ext.decide.index.node_states import NodeStates
from scheduler_ext.decide.index.verdicts import PodShape, ShapeJudge
from scheduler_ext.decide.misfit import NodeRefusal

MOST_SHAPES = 10_000
MOST_UNDER_WAY = 64
"""Searches that can be continued. Each has a place for every node. Results of further ones are forgotten."""
MOST_ROOMS = 10_000
"""Shapes for which it is remembered where room was found."""


@dataclass(slots=True)
class _RoomSearch:
    """One search. `seen` is the number of the last change taken into account; `left` are nodes still to be judged."""

    seen: int = 0
    left: dict[str, None] = field(default_factory=dict)
    judge: ShapeJudge | None = None
    """The judge exists only while the search goes on: its memory is not worth keeping for a few nodes."""


class Polls:
    """Room for the shapes of waiting pods. It does not change what `/filter` knows of shapes."""

    def __init__(self, states: NodeStates) -> None:
        self._states = states
        self._searches: dict[PodShape, _RoomSearch] = {}
        self._under_way: dict[PodShape, int] = {}
        """The number of the last poll of each shape, in ascending order."""
        self._polls = 0
        self._polled: set[PodShape] = set()
        """Shapes of this round."""
        self.rooms: dict[PodShape, str] = {}
        """A node where a search found room. An answer judges it when its effort leaves others unknown. So frequent
        changes and many shapes cannot hide free room from a pod.
        """

    def end_round(self) -> None:
        """Forgets all shapes that were not polled since the last round."""
        polled, self._polled = self._polled, set()
        self._searches = {shape: search for shape, search in self._searches.items() if shape in polled}
        self._under_way = {shape: number for shape, number in self._under_way.items() if shape in polled}

    def poll(self, shape: PodShape, effort: int) -> bool | None:
        """Returns whether such a pod fits on any node; None if the effort did not suffice to find out.

        `effort` is as `ShapeJudge` counts it. The pod itself holds nothing.
        """
        if len(self._searches) >= MOST_SHAPES:
            self._polled.clear()
            self.end_round()
        self._polls += 1
        self._polled.add(shape)
        search = self._searches.setdefault(shape, _RoomSearch())
        before = search.seen
        search.left.update(dict.fromkeys(self._states.changed_since(search.seen)))
        search.seen = self._states.last_change
        by_name = self._states.by_name
        judge = search.judge = search.judge or ShapeJudge(shape, self._states.largest.gpu_mib, len(by_name))
        until = judge.effort.made + effort
        while search.left:
            if judge.effort.made >= until:
                if not self._goes_on(shape):
                    self._searches[shape] = _RoomSearch(before)
                return None
            name = next(reversed(search.left))
            state = by_name.get(name)
            if state is not None and not isinstance(judge.judge(state), NodeRefusal):
                self._drop(shape)
                make_room(self.rooms, MOST_ROOMS)
                self.rooms[shape] = name
                return True
            del search.left[name]
        search.judge = None
        self._under_way.pop(shape, None)
        return False

    def _goes_on(self, shape: PodShape) -> bool:
        """Returns whether the shape's search may be kept. A shape that was not polled since every other one belongs to
        pods that are gone.
        """
        if shape not in self._under_way and len(self._under_way) >= MOST_UNDER_WAY:
            oldest = next(iter(self._under_way))
            if self._polls - self._under_way[oldest] <= MOST_SHAPES:
                return False
            self._drop(oldest)
        self._under_way.pop(shape, None)
        self._under_way[shape] = self._polls
        return True

    def _drop(self, shape: PodShape) -> None:
        self._searches.pop(shape, None)
        self._under_way.pop(shape, None)
