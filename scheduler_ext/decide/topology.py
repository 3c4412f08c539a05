"""Finds which GPUs of a node belong together: the best-connected ones, or the least connected one for a single GPU.

Candidates are the GPUs on which the container fits, in visit order. Links to other GPUs do not count: a GPU that is
full or refused now does not help the next pod either.

The best set is the subset of a given size with the largest value: a sum over its pairs and its single members. The
plain version is `max(combinations(range(count), size), key=value)`; tests hold the choice equal to it. That version
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
from typing import NamedTuple

from proto.devices import DeviceShare, DeviceUUID, PairScores
from scheduler_ext.decide.effort import Effort, make_room

EXACT_STEPS = 100_000
"""Largest number of additions for an exact search. It covers any size of up to 18 members, up to 4 of 32, and 2 of 64.
"""

Rows = Sequence[Sequence[int]]
Sums = list[list[int]]
"""One number for each choice, by number of members. All tables of one half list the choices in the same order."""


class _Largest(NamedTuple):
    """The largest value of a choice; None if the budget covers none. `steps` counts the additions made."""

    value: int | None
    steps: int


class _Weighed(NamedTuple):
    pairs: Rows
    gains: Sequence[int]


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
    `most_steps` exceeds EXACT_STEPS, the choice is good but not always the best: it grows from one member.
    """
    count = len(gains)
    # The lowest bits of a value name its members, the first in the highest bit. So no two choices are equal, and the
    # lexicographically first of equals is the largest.
    named_pairs = [[pair << count for pair in row] for row in pairs]
    named_gains = [(gain << count) + (1 << count - 1 - member) for member, gain in enumerate(gains)]
    if is_exact(count, size):
        found = _Halves(named_pairs, named_gains, size, costs, budget).best()
    else:
        found = _grown(named_pairs, named_gains, size, costs or [0] * count, budget if costs else 0)
    value = found.value
    members = None if value is None else tuple(m for m in range(count) if value >> count - 1 - m & 1)
    return Subset(members, found.steps)


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

    def best(self) -> _Largest:
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
        return _Largest(max(self._found, default=None), self._steps)

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


def _grown(pairs: Rows, gains: Sequence[int], size: int, costs: Sequence[int], budget: int) -> _Largest:
    """Returns the largest value of the choices that grow from each member. Each further member is the one that adds
    most, of those beside which the budget covers the rest.
    """
    values, steps, cheapest = list[int](), 0, sorted(range(len(gains)), key=costs.__getitem__)
    for first in range(len(gains)):
        adds, options, left, value, unspent = list(gains), [first], cheapest, 0, budget
        for wanted in range(size, 0, -1):
            least, dearest = sum(costs[member] for member in left[:wanted]), costs[left[wanted - 1]]
            able = [each for each in options if least + max(costs[each] - dearest, 0) <= unspent]
            if not able:
                break
            member = max(able, key=adds.__getitem__)
            value, unspent, steps = value + adds[member], unspent - costs[member], steps + len(adds)
            adds = list(map(add, adds, pairs[member]))
            options = left = [each for each in left if each != member]
        else:
            values.append(value)
    return _Largest(max(values, default=None), steps)


CACHED_CHOICES = 2048
"""Nodes of one machine type in the same state share a choice. All choices with 16 GPUs each take about 15 MB."""

STEPS = 12
"""Steps of a search that count as an effort of 1."""

Matrix = tuple[tuple[int | None, ...], ...]
"""Symmetric, zeros on the diagonal; None where the node published no score."""


_known: dict[tuple[Matrix, int, tuple[int, ...] | None, int, bool], tuple[int, ...] | None] = {}
"""Earlier answers, by the arguments of the question."""


def pair_matrix(scores: PairScores, order: Sequence[DeviceUUID]) -> Matrix:
    """Returns the score of each pair in both cells, read from the row of the GPU that comes first in `order`, as HAMi
    does.
    """
    matrix: list[list[int | None]] = [[0] * len(order) for _ in order]
    for i, first in enumerate(order):
        row = scores.get(first, {})
        for j in range(i + 1, len(order)):
            matrix[i][j] = matrix[j][i] = row.get(order[j])
    return tuple(map(tuple, matrix))


def least_connected(scores: PairScores, order: Sequence[DeviceUUID]) -> int:
    """Returns the position of the first GPU with the smallest sum of links to the others: it leaves the most behind."""
    sums = [sum(scores.get(uuid, {}).get(peer, 0) for peer in order if peer != uuid) for uuid in order]
    return sums.index(min(sums))


def best_connected(
    matrix: Matrix,
    size: int,
    costs: Sequence[int] | None = None,
    budget: int | None = None,
    *,
    weigh_remainder: bool = True,
    effort: Effort | None = None,
) -> tuple[int, ...] | None:
    """Returns the `size` positions that are connected best, in ascending order.

    Choices are compared in this order:

    1. The highest total of pair scores. Negative ones count, and a missing one counts 0, as in HAMi.

    2. The fewest missing pairs, so that no unknown link wins over a known one of equal value.

    3. The highest total among the remaining candidates, so that an NVLink island stays whole for the next pod.

    4. The first in visit order. Without `weigh_remainder` this follows the total directly, as in HAMi.

    With a `budget`, only choices whose `costs` add up to at most that count; None if there is no such choice. The
    search is exact for every size of up to 18 candidates; see `best_subset` for more.
    """
    if costs is None or budget is None or sum(sorted(costs)[-size:]) <= budget:
        costs, budget = None, 0
    arguments = matrix, size, None if costs is None else tuple(costs), budget, weigh_remainder
    try:
        return _known[arguments]
    except KeyError:
        make_room(_known, CACHED_CHOICES)
        found = _searched(*arguments)
        _known[arguments] = found.members
    if effort is not None:
        effort.made += len(matrix) ** 2 // 2 + found.steps // STEPS
    return found.members


def connection(choice: Sequence[DeviceShare], scores: PairScores) -> int:
    """Returns the sum of the pair scores inside a choice, read as in `pair_matrix`. A missing one counts 0."""
    return sum(
        scores.get(share.uuid, {}).get(peer.uuid, 0) for n, share in enumerate(choice) for peer in choice[n + 1 :]
    )


def _searched(matrix: Matrix, size: int, costs: tuple[int, ...] | None, budget: int, weigh_remainder: bool) -> Subset:
    if size == len(matrix) and costs is None:
        return Subset(tuple(range(size)), 0)
    if weigh_remainder:
        weighed = _weigh(matrix, size)
    else:
        weighed = _Weighed([[score or 0 for score in row] for row in matrix], [0] * len(matrix))
    return best_subset(weighed.pairs, weighed.gains, size, costs, budget)


def _weigh(matrix: Matrix, size: int) -> _Weighed:
    """Returns pair scores, missing pairs and remainder as one sum over the pairs and members of a choice of `size`.

    Each has a unit larger than the sum of everything after it. What a choice takes from the remainder is the sum of its
    members' links to all candidates minus its own total. So among choices of equal total, the smallest such sum leaves
    the most.
    """
    links = [sum(score or 0 for score in row) for row in matrix]
    missing_unit = 2 * sum(map(abs, links)) + 1
    score_unit = missing_unit * (comb(size, 2) + 1)
    pairs = [[-missing_unit if score is None else score * score_unit for score in row] for row in matrix]
    return _Weighed(pairs, [-link for link in links])
