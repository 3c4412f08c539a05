"""Finds the subset of a given size with the largest value: a sum over its pairs and its single members.

The plain version is `max(combinations(range(count), size), key=value)`; tests hold the choice equal to it. That version
examines C(count, size) choices with all their pairs: 12 870 choices of 28 pairs for 8 of 16 GPUs.

This version is exact too, and meets in the middle. It cuts the members into two halves and tables the values of all
choices in the right half. Each choice in the left half then costs one addition per table entry. The work depends on the
numbers of members alone, never on their scores, so no input is slow.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress
from math import comb
from operator import add

EXACT_STEPS = 100_000
"""Largest number of additions for an exact search. It covers any size of up to 18 members, up to 4 of 32, and 2 of 64.
"""

Rows = Sequence[Sequence[int]]
Sums = list[list[int]]
"""One number for each choice, by number of members. All tables of one half list the choices in the same order."""


@dataclass(frozen=True, slots=True)
class Subset:
    """`members` are in ascending order; None if the budget covers no choice. `steps` counts the additions made."""

    members: tuple[int, ...] | None
    steps: int


def best_subset(
    pairs: Rows, gains: Sequence[int], size: int, costs: Sequence[int] | None = None, budget: int = 0
) -> Subset:
    """Returns the `size` members with the largest sum of `pairs` and `gains`; of equal choices the lexicographically
    first.

    `pairs` is symmetric with zeros on its diagonal. With `costs`, only choices that cost at most `budget` count. Where
    `most_steps` exceeds EXACT_STEPS, the choice is good but not always the best: it grows from each member in turn, and
    exchanges of single members improve the best of these.
    """
    count = len(gains)
    # The lowest bits of a value name its members, the first in the highest bit. So no two choices are equal, and the
    # lexicographically first of equals is the largest.
    named_pairs = [[pair << count for pair in row] for row in pairs]
    named_gains = [(gain << count) + (1 << count - 1 - member) for member, gain in enumerate(gains)]
    search = _Halves if is_exact(count, size) else _Climb
    value, steps = search(named_pairs, named_gains, size, costs, budget).best()
    members = None if value is None else tuple(m for m in range(count) if value >> count - 1 - m & 1)
    return Subset(members, steps)


@lru_cache(maxsize=1024)
def is_exact(count: int, size: int) -> bool:
    """Returns whether the search for `size` of `count` members is exact. It is then exact for fewer members too."""
    return most_steps(count, size) <= EXACT_STEPS


def most_steps(count: int, size: int) -> int:
    """Returns the largest number of additions that an exact search makes.

    Let h members be on the left and m on the right. For each number s taken from the right there is one tree of
    choices, and each of its nodes costs C(m, s). A tree of t-subsets has C(h + 1, t) - 1 nodes. By Vandermonde's
    identity the products add up to less than C(count + 1, size). In addition there are h + 3 tables, each of the
    choices of up to `size` of m members.
    """
    left, right = count // 2, count - count // 2
    return comb(count + 1, size) + (left + 3) * sum(comb(right, members) for members in range(min(size, right) + 1))


class _Halves:
    def __init__(self, pairs: Rows, gains: Sequence[int], size: int, costs: Sequence[int] | None, budget: int) -> None:
        self._pairs, self._gains, self._size = pairs, gains, size
        self._costs, self._budget = costs or [0] * len(gains), budget
        self._limited = costs is not None
        self._left = len(gains) // 2
        self._steps = 0
        self._row_links: list[list[int]] = []
        self._row_costs: list[int] = []
        self._found: list[int] = []
        """The best value for each choice on the left."""

    def best(self) -> tuple[int | None, int]:
        left, most = self._left, min(self._size, len(self._gains) - self._left)
        values = self._values_right(most)
        spent = self._sums(self._costs[left:], 0, most) if self._limited else []
        links = [self._sums(row[left:], 0, min(most, self._size - 1)) for row in self._pairs[:left]]
        for taken in range(max(0, self._size - left), most + 1):
            self._row_costs = spent[taken] if self._limited else []
            if taken == self._size:
                self._keep(values[taken], 0, 0)
                continue
            self._row_links = [by_size[taken] for by_size in links]
            self._extend(values[taken], self._size - taken, 0, value=0, gains=self._gains, cost=0)
        return max(self._found, default=None), self._steps

    def _extend(self, row: list[int], wanted: int, first: int, *, value: int, gains: Sequence[int], cost: int) -> None:
        """Takes `wanted` more of the left members from `first` on.

        `row` holds, for each choice on the right, its value and its links to the members taken on the left. Those
        members are worth `value` themselves. `gains` is what each further member adds.
        """
        for member in range(first, self._left - wanted + 1):
            self._steps += len(row)
            extended = map(add, row, self._row_links[member])
            value_with, cost_with = value + gains[member], cost + self._costs[member]
            if wanted == 1:
                self._keep(extended, value_with, cost_with)
            else:
                gains_with = list(map(add, gains, self._pairs[member]))
                self._extend(list(extended), wanted - 1, member + 1, value=value_with, gains=gains_with, cost=cost_with)

    def _keep(self, row: Iterable[int], value: int, cost: int) -> None:
        if self._limited:
            row = compress(row, map((self._budget - cost).__ge__, self._row_costs))
        best = max(row, default=None)
        if best is not None:
            self._found.append(best + value)

    def _values_right(self, most: int) -> Sums:
        values: Sums = [[0], *([] for _ in range(most))]
        for number, member in enumerate(range(self._left, len(self._gains))):
            links = self._sums(self._pairs[member][self._left : member], self._gains[member], most - 1)
            for size in range(min(most, number + 1), 0, -1):
                self._steps += len(links[size - 1])
                values[size] += map(add, values[size - 1], links[size - 1])
        return values

    def _sums(self, weights: Sequence[int], start: int, most: int) -> Sums:
        """Returns `start` plus the weights of the members, for each choice of up to `most` of them."""
        sums: Sums = [[start], *([] for _ in range(most))]
        for number, weight in enumerate(weights):
            for size in range(min(most, number + 1), 0, -1):
                self._steps += len(sums[size - 1])
                sums[size] += [known + weight for known in sums[size - 1]]
        return sums


class _Climb:
    def __init__(self, pairs: Rows, gains: Sequence[int], size: int, costs: Sequence[int] | None, budget: int) -> None:
        self._pairs, self._gains, self._size = pairs, gains, size
        self._costs, self._budget = costs or [0] * len(gains), budget if costs else 0
        self._steps = 0

    def best(self) -> tuple[int | None, int]:
        members = range(len(self._gains))
        cheapest = sorted(members, key=self._costs.__getitem__)[: self._size]
        starts = [start for start in (cheapest, *map(self._grown, members)) if self._cost(start) <= self._budget]
        if not starts:
            return None, self._steps
        return self._improved(max(starts, key=self._value)), self._steps

    def _grown(self, member: int) -> list[int]:
        """Returns the members that begin with this one: each further one is the one that adds most."""
        chosen, gains = [member], self._gains_beside([member])
        while len(chosen) < self._size:
            member = max((m for m in range(len(gains)) if m not in chosen), key=gains.__getitem__)
            chosen.append(member)
            self._steps += len(gains)
            gains = list(map(add, gains, self._pairs[member]))
        return chosen

    def _improved(self, chosen: list[int]) -> int:
        """Returns the value after exchanges of one member at a time, the best first, until none helps. There is at most
        one exchange per member.
        """
        for _ in self._gains:
            gains, cost = self._gains_beside(chosen), self._cost(chosen)
            exchanges = [
                (gains[new] - self._pairs[new][old] - gains[old], old, new)
                for old in chosen
                for new in range(len(gains))
                if new not in chosen and cost - self._costs[old] + self._costs[new] <= self._budget
            ]
            self._steps += len(exchanges)
            gain, old, new = max(exchanges, default=(0, 0, 0))
            if gain <= 0:
                break
            chosen = [new if member == old else member for member in chosen]
        return self._value(chosen)

    def _gains_beside(self, chosen: Sequence[int]) -> list[int]:
        self._steps += len(chosen) * len(self._gains)
        return [gain + sum(map(row.__getitem__, chosen)) for gain, row in zip(self._gains, self._pairs, strict=True)]

    def _value(self, chosen: Sequence[int]) -> int:
        pairs = sum(self._pairs[a][b] for n, a in enumerate(chosen) for b in chosen[n + 1 :])
        return pairs + sum(self._gains[member] for member in chosen)

    def _cost(self, chosen: Sequence[int]) -> int:
        return sum(self._costs[member] for member in chosen)
