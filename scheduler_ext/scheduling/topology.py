"""Which GPUs of a node belong together: the best-connected ones, or, for a single one, the least connected.

Candidates are the GPUs on which the container fits, in visit order. Links to other GPUs do not count: who is full or
refused now is no partner for the next pod either.
"""

from collections.abc import Sequence
from math import comb

from proto.devices import DeviceShare, DeviceUUID, PairScores
from scheduler_ext.scheduling.best_subset import Found, best_subset
from scheduler_ext.scheduling.effort import Effort

CACHED_CHOICES = 2048
"""Nodes of one machine type in the same state share a choice; of 16 GPUs each, all of them take about 15 MB."""

STEPS = 12
"""Of a search are an effort of 1."""

Matrix = tuple[tuple[int | None, ...], ...]
"""Symmetric, zeros on the diagonal; None where the node published no score."""


_known: dict[tuple[Matrix, int, tuple[int, ...] | None, int, bool], tuple[int, ...] | None] = {}
"""By what was asked."""


def pair_matrix(scores: PairScores, order: Sequence[DeviceUUID]) -> Matrix:
    """Score of each pair in both cells, read from the row of the GPU that comes first in `order`, as HAMi does."""
    matrix: list[list[int | None]] = [[0] * len(order) for _ in order]
    for i, first in enumerate(order):
        row = scores.get(first, {})
        for j in range(i + 1, len(order)):
            matrix[i][j] = matrix[j][i] = row.get(order[j])
    return tuple(map(tuple, matrix))


def least_connected(scores: PairScores, order: Sequence[DeviceUUID]) -> int:
    """Position of the GPU with the smallest sum towards the others, which leaves the most behind; the first such."""
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
    """The `size` positions that are connected best, ascending.

    In this order: the highest total of pair scores, negative ones included, a missing one counted 0 as HAMi does; the
    fewest missing pairs, so that no unknown link wins over a known one worth as much; the highest total among the
    candidates that remain, so that an NVLink island stays whole for the next pod; the first in visit order. Without
    `weigh_remainder` equal totals go to the first in visit order at once, as HAMi's do.

    With a `budget` only choices whose `costs` add up to no more count; None when there is no such choice.
    Exact for every size of up to 18 candidates; `best_subset` says what holds beyond.
    """
    if costs is None or budget is None or sum(sorted(costs)[-size:]) <= budget:
        costs, budget = None, 0
    asked = matrix, size, None if costs is None else tuple(costs), budget, weigh_remainder
    try:
        return _known[asked]
    except KeyError:
        if len(_known) >= CACHED_CHOICES:
            _known.clear()
        found = _searched(*asked)
        _known[asked] = found.members
    if effort is not None:
        effort.made += len(matrix) ** 2 // 2 + found.steps // STEPS
    return found.members


def connection(choice: Sequence[DeviceShare], scores: PairScores) -> int:
    """The pair scores inside a choice added up, each read as in `pair_matrix`; a missing one counts 0."""
    return sum(
        scores.get(share.uuid, {}).get(peer.uuid, 0) for n, share in enumerate(choice) for peer in choice[n + 1 :]
    )


def _searched(matrix: Matrix, size: int, costs: tuple[int, ...] | None, budget: int, weigh_remainder: bool) -> Found:
    if size == len(matrix) and costs is None:
        return Found(tuple(range(size)), 0)
    if weigh_remainder:
        pairs, gains = weigh(matrix, size)
    else:
        pairs, gains = [[score or 0 for score in row] for row in matrix], [0] * len(matrix)
    return best_subset(pairs, gains, size, costs, budget)


def weigh(matrix: Matrix, size: int) -> tuple[list[list[int]], list[int]]:
    """Pair scores, missing pairs and remainder as one sum over the pairs and members of a choice of `size`.

    Each comes in a unit larger than everything that the ones after it can add up to. What a choice takes from the
    remainder is the sum of its members' links to all candidates less its own total, so among choices of equal total the
    smallest such sum leaves the most.
    """
    links = [sum(score or 0 for score in row) for row in matrix]
    missing_unit = 2 * sum(map(abs, links)) + 1
    score_unit = missing_unit * (comb(size, 2) + 1)
    pairs = [[-missing_unit if score is None else score * score_unit for score in row] for row in matrix]
    return pairs, [-link for link in links]
