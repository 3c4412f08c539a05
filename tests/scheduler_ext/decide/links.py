"""Link matrices of machines, in pair scores, for tests of the choice of GPUs."""

from collections.abc import Callable, Sequence
from itertools import combinations

from scheduler_ext.decide.topology import Matrix


def matrix(count: int, score: Callable[[int, int], int | None]) -> Matrix:
    """`score` is asked once for each pair, the smaller position first."""
    return tuple(tuple(0 if i == j else score(min(i, j), max(i, j)) for j in range(count)) for i in range(count))


def nvswitch(count: int) -> Matrix:
    """Every pair by 18 NVLinks."""
    return matrix(count, lambda i, j: 1810)


def islands(count: int, of: int) -> Matrix:
    """Two NVLinks inside each island of neighbours, the system bus between islands."""
    return matrix(count, lambda i, j: 220 if i // of == j // of else 10)


def striped_islands(count: int, number: int) -> Matrix:
    """As many islands, neighbours in different ones."""
    return matrix(count, lambda i, j: 220 if i % number == j % number else 10)


def total_score(links: Matrix, chosen: Sequence[int]) -> int:
    return sum(links[i][j] or 0 for i, j in combinations(chosen, 2))
