"""Finds which GPUs of a node belong together: the best-connected ones, or the least connected one for a single GPU.

Candidates are the GPUs on which the container fits, in visit order. Links to other GPUs do not count: a GPU that is
full or refused now does not help the next pod either.
"""

from collections.abc import Sequence
from math import comb

from proto.devices import DeviceShare, DeviceUUID, PairScores
from scheduler_ext.decide.best_subset import Subset, best_subset
from scheduler_ext.decide.effort import Effort

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
    """Returns the sum of the pair scores inside a choice, read as in `pair_matrix`. A missing one counts 0."""
    return sum(
        scores.get(share.uuid, {}).get(peer.uuid, 0) for n, share in enumerate(choice) for peer in choice[n + 1 :]
    )


def _searched(matrix: Matrix, size: int, costs: tuple[int, ...] | None, budget: int, weigh_remainder: bool) -> Subset:
    if size == len(matrix) and costs is None:
        return Subset(tuple(range(size)), 0)
    if weigh_remainder:
        pairs, gains = weigh(matrix, size)
    else:
        pairs, gains = [[score or 0 for score in row] for row in matrix], [0] * len(matrix)
    return best_subset(pairs, gains, size, costs, budget)


def weigh(matrix: Matrix, size: int) -> tuple[list[list[int]], list[int]]:
    """Returns pair scores, missing pairs and remainder as one sum over the pairs and members of a choice of `size`.

    Each has a unit larger than the sum of everything after it. What a choice takes from the remainder is the sum of its
    members' links to all candidates minus its own total. So among choices of equal total, the smallest such sum leaves
    the most.
    """
    links = [sum(score or 0 for score in row) for row in matrix]
    missing_unit = 2 * sum(map(abs, links)) + 1
    score_unit = missing_unit * (comb(size, 2) + 1)
    pairs = [[-missing_unit if score is None else score * score_unit for score in row] for row in matrix]
    return pairs, [-link for link in links]
