"""Bounds the work for one question and what is remembered: effort is counted, and a long search is made in steps."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar, cast

T = TypeVar("T")
SteppedSearch = Generator[None, None, T]
"""Each step is one look at a node. It takes less than a millisecond, or a few for a pod of several containers. Other
work may run between two steps.
"""


@dataclass(slots=True)
class Effort:
    """`made` grows by 1 for about two microseconds of work."""

    made: int = 0


def within(search: SteppedSearch[T], effort: Effort, most: int) -> SteppedSearch[T | None]:
    """Returns the search's result; None if it takes more than about `most` of the effort that it counts."""
    until = effort.made + most
    while effort.made < until:
        try:
            next(search)
        except StopIteration as end:
            return cast("T", end.value)
        yield
    return None


def finished(search: SteppedSearch[T]) -> T:
    """Runs the search to its end. Returns the result."""
    while True:
        try:
            next(search)
        except StopIteration as end:
            return cast("T", end.value)


def make_room(known: dict[Any, Any], most: int) -> None:
    """Empties a cache that has this many entries."""
    if len(known) >= most:
        known.clear()
