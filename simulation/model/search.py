"""Breadth-first search of all states that a world can reach, each state once."""

from array import array
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

W = TypeVar("W", bound=Hashable)


class WorldStep(NamedTuple, Generic[W]):
    """An event that may happen next. A `fault` may never happen; a world must come to its end without one."""

    label: str
    world: W
    fault: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """`problem` is empty if nothing was found; else `trace` is the shortest way to it."""

    states: int
    steps: int
    longest: int
    """Steps of the longest of the shortest ways to each state."""
    problem: str = ""
    trace: tuple[str, ...] = ()


class TooLarge(Exception):
    """The world has more states than were granted."""


def search(
    start: W,
    steps: Callable[[W], Iterable[WorldStep[W]]],
    wrong: Callable[[W], str],
    is_over: Callable[[W], bool],
    *,
    most: int,
) -> Searched:
    """Search from `start`. No state may be `wrong`, and each must have a way without faults to a state that `is_over`.

    Raises TooLarge if there are more than `most` states.
    """
    found = _FoundStates[W](start)
    waiting: list[W] = [start]
    depth = steps_made = 0
    while waiting:
        reached: list[W] = []
        for world in waiting:
            here = found.numbers[world]
            if problem := wrong(world):
                return Searched(
                    states=len(found.numbers),
                    steps=steps_made,
                    longest=depth,
                    problem=problem,
                    trace=found.way_to(here),
                )
            if is_over(world):
                found.over.append(here)
            for step in steps(world):
                steps_made += 1
                if found.add(here, step):
                    reached.append(step.world)
            if len(found.numbers) > most:
                raise TooLarge(f"more than {most} states")
        depth, waiting = depth + bool(reached), reached
    stuck = found.first_stuck()
    return Searched(
        states=len(found.numbers),
        steps=steps_made,
        longest=depth,
        problem="" if stuck is None else "without a further fault it never comes to its end",
        trace=() if stuck is None else found.way_to(stuck),
    )


class _FoundStates(Generic[W]):
    """The states by number, how each was reached first, and the steps without faults, as pairs of numbers."""

    def __init__(self, start: W) -> None:
        self.numbers: dict[W, int] = {start: 0}
        self.over = array("l")
        self._parents, self._labels = array("l", [0]), array("l", [0])
        self._names: dict[str, int] = {}
        self._from, self._to = array("l"), array("l")

    def add(self, here: int, step: WorldStep[W]) -> bool:
        """Returns whether the state is new."""
        there = self.numbers.setdefault(step.world, len(self.numbers))
        is_new = there == len(self._parents)
        if is_new:
            self._parents.append(here)
            self._labels.append(self._names.setdefault(step.label, len(self._names)))
        if not step.fault and here != there:
            self._from.append(here)
            self._to.append(there)
        return is_new

    def way_to(self, number: int) -> tuple[str, ...]:
        names, way = list(self._names), list[str]()
        while number:
            way.append(names[self._labels[number]])
            number = self._parents[number]
        return tuple(reversed(way))

    def first_stuck(self) -> int | None:
        """Returns the first state without a way to the end."""
        starts, before = self._backwards()
        ends = bytearray(len(self.numbers))
        waiting = list(self.over)
        for number in waiting:
            ends[number] = 1
        while waiting:
            number = waiting.pop()
            for at in range(starts[number], starts[number + 1]):
                if not ends[before[at]]:
                    ends[before[at]] = 1
                    waiting.append(before[at])
        at = ends.find(0)
        return None if at < 0 else at

    def _backwards(self) -> "tuple[array[int], array[int]]":
        """Returns where the predecessors of each state begin, and the predecessors."""
        starts = array("l", bytes(8 * (len(self.numbers) + 1)))
        for to in self._to:
            starts[to + 1] += 1
        for number in range(len(self.numbers)):
            starts[number + 1] += starts[number]
        before, filled = array("l", bytes(8 * len(self._to))), array("l", starts)
        for origin, to in zip(self._from, self._to, strict=True):
            before[filled[to]] = origin
            filled[to] += 1
        return starts, before
