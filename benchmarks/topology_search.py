"""Measures how long, and in how many steps, the best-connected GPUs are found, against trying every choice.

Run it with `python -m benchmarks.topology_search`. Times are for a choice that is not in the cache yet.
"""

import random
import time
from collections.abc import Callable
from itertools import combinations
from math import comb
from statistics import median

import click
from rich.console import Console
from rich.table import Table

from scheduler_ext.scheduling.best_subset import EXACT_STEPS, best_subset, most_steps
from scheduler_ext.scheduling.topology import Matrix, weigh

Score = Callable[[random.Random, int, int], int]


def _cube_mesh(_rng: random.Random, i: int, j: int) -> int:
    """Each GPU of a quad has one NVLink to the others, and two to its counterpart in the neighbouring quad."""
    if i // 4 == j // 4:
        return 140
    return 220 if j - i == 4 and i // 4 % 2 == 0 else 10


SCORES: dict[str, Score] = {
    "uniform: every pair by 18 NVLinks": lambda _rng, _i, _j: 1810,
    "cube mesh, one or two NVLinks": _cube_mesh,
    "islands of four": lambda _rng, i, j: 420 if i // 4 == j // 4 else 10,
    "random": lambda rng, _i, _j: rng.randint(10, 1860),
    "adversarial: huge, nearly equal, half below zero": lambda rng, _i, _j: (
        10**6 * rng.choice((-1, 1)) + rng.randint(0, 1)
    ),
}
SIZES = ((4, 2), (8, 2), (8, 4), (12, 6), (16, 2), (16, 4), (16, 8), (18, 9), (32, 4), (32, 16), (64, 8))
BRUTE_FORCE_CHOICES = 13_000
"""Beyond this number, choices are not tried one by one."""


@click.command()
@click.option("--rounds", type=click.IntRange(min=1), default=15, show_default=True)
@click.option("--seed", default=0, show_default=True)
def main(rounds: int, seed: int) -> None:
    """Print a table: microseconds and steps for each size and kind of scores."""
    table = Table(
        "GPUs", "of", "scores", "p50 µs", "worst µs", "steps", "bound", "every choice", title="Best-connected GPUs"
    )
    for count, size in SIZES:
        for kind, score in SCORES.items():
            table.add_row(str(size), str(count), kind, *_measured(count, size, score, rounds, random.Random(seed)))
    Console(width=130).print(table)


def _measured(count: int, size: int, score: Score, rounds: int, rng: random.Random) -> tuple[str, ...]:
    times, steps, matrix = [], 0, _matrix(count, score, rng)
    for _ in range(rounds):
        matrix = _matrix(count, score, rng)
        started = time.perf_counter()
        steps = max(steps, best_subset(*weigh(matrix, size), size).steps)
        times.append(time.perf_counter() - started)
    exact = most_steps(count, size) <= EXACT_STEPS
    bound = f"{most_steps(count, size)}" if exact else "not exact"
    return (
        f"{median(times) * 1e6:.0f}",
        f"{max(times) * 1e6:.0f}",
        f"{steps}",
        bound,
        _ratio(matrix, size, median(times)),
    )


def _ratio(matrix: Matrix, size: int, seconds: float) -> str:
    """How many times longer it takes to add up every choice."""
    if comb(len(matrix), size) > BRUTE_FORCE_CHOICES:
        return "–"
    started = time.perf_counter()
    max(sum(matrix[i][j] or 0 for i, j in combinations(chosen, 2)) for chosen in combinations(range(len(matrix)), size))
    return f"{(time.perf_counter() - started) / seconds:.1f}×"


def _matrix(count: int, score: Score, rng: random.Random) -> Matrix:
    pairs = {pair: score(rng, *pair) for pair in combinations(range(count), 2)}
    return tuple(tuple(0 if i == j else pairs[min(i, j), max(i, j)] for j in range(count)) for i in range(count))


if __name__ == "__main__":
    main()
