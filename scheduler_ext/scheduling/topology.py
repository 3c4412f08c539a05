"""The best-connected GPUs of a node."""

from collections.abc import Sequence
from operator import add

from proto.devices import DeviceUUID, PairScores

SEARCH_STEPS = 200_000
"""Partial choices looked at before the best one found is taken; far beyond what 16 GPUs need."""

Matrix = Sequence[Sequence[int]]


def pair_matrix(scores: PairScores, order: Sequence[DeviceUUID]) -> Matrix:
    """Score of each pair in both cells, read from the row of the GPU that comes first in `order`."""
    matrix = [[0] * len(order) for _ in order]
    for i, first in enumerate(order):
        row = scores.get(first, {})
        for j in range(i + 1, len(order)):
            matrix[i][j] = matrix[j][i] = row.get(order[j], 0)
    return matrix


def least_connected(scores: PairScores, order: Sequence[DeviceUUID]) -> int:
    """Position of the GPU with the smallest sum towards the others; the first such."""
    sums = [sum(scores.get(uuid, {}).get(peer, 0) for peer in order if peer != uuid) for uuid in order]
    return sums.index(min(sums))


def best_connected(
    matrix: Matrix, size: int, costs: Sequence[int] | None = None, budget: int | None = None
) -> tuple[int, ...] | None:
    """The `size` positions with the largest sum of pair scores; of equally good ones the lexicographically first.

    With a `budget` only choices whose `costs` add up to no more count; None when there is no such choice.
    """
    if budget is None or costs is None:
        return _Search(matrix, size, [0] * len(matrix), 0).run()
    return _Search(matrix, size, costs, budget).run()


def total_score(matrix: Matrix, chosen: Sequence[int]) -> int:
    return sum(matrix[i][j] for n, i in enumerate(chosen) for j in chosen[n + 1 :])


class _Search:
    """Branch and bound in lexicographic order.

    A branch is left when even its optimistic total stays below the best one known. Every pair is shared by two GPUs, so
    the optimistic total counts links to chosen GPUs whole and the best links to others half (all doubled).
    """

    def __init__(self, matrix: Matrix, size: int, costs: Sequence[int], budget: int) -> None:
        self._matrix = matrix
        self._size = size
        self._costs = costs
        self._budget = budget
        self._steps = 0
        self._best: tuple[int, ...] | None = None
        self._best_total = self._improved_start() if not any(costs) else None
        self._halves = [self._half_links(remaining) for remaining in range(size + 1)]

    def run(self) -> tuple[int, ...] | None:
        self._extend((), 0, [0] * len(self._matrix), 0, 0)
        return self._best

    def _half_links(self, remaining: int) -> list[int]:
        """For each GPU the sum of its best links to `remaining - 1` others."""
        links = ([s for j, s in enumerate(row) if j != i] for i, row in enumerate(self._matrix))
        return [sum(sorted(row, reverse=True)[: max(remaining - 1, 0)]) for row in links]

    def _improved_start(self) -> int:
        """The total of a good choice, found by swapping single GPUs; the search then only looks for no worse ones."""
        rows, count = self._matrix, len(self._matrix)
        best = None
        for seed in range(count):
            links, chosen = list(rows[seed]), [seed]
            while len(chosen) < self._size:
                pick = max((i for i in range(count) if i not in chosen), key=links.__getitem__)
                chosen.append(pick)
                links = list(map(add, links, rows[pick]))
            score = self._swap(chosen, links)
            best = score if best is None else max(best, score)
        return best or 0

    def _swap(self, chosen: list[int], links: list[int]) -> int:
        rows = self._matrix
        outside = [i for i in range(len(rows)) if i not in chosen]
        improved = True
        while improved:
            improved = False
            for a, inside in enumerate(chosen):
                for b, candidate in enumerate(outside):
                    if links[candidate] - rows[candidate][inside] > links[inside]:
                        links = [
                            link + new - old
                            for link, new, old in zip(links, rows[candidate], rows[inside], strict=True)
                        ]
                        chosen[a], outside[b] = candidate, inside
                        improved = True
                        break
        return total_score(rows, chosen)

    def _extend(self, chosen: tuple[int, ...], total: int, links: list[int], first: int, spent: int) -> None:
        remaining = self._size - len(chosen)
        if remaining == 0:
            self._keep(chosen, total)
            return
        if remaining == 1:
            self._complete(chosen, total, links, first, spent)
            return
        halves = self._halves[remaining]
        for position in range(first, len(self._matrix) - remaining + 1):
            if self._steps >= SEARCH_STEPS and self._best is not None:
                return
            self._steps += 1
            cost = spent + self._costs[position]
            if cost > self._budget:
                continue
            if not self._promising(total, links, halves, position, remaining):
                return
            self._extend(
                (*chosen, position),
                total + links[position],
                list(map(add, links, self._matrix[position])),
                position + 1,
                cost,
            )

    def _promising(self, total: int, links: list[int], halves: list[int], first: int, remaining: int) -> bool:
        """Whether GPUs from `first` on can still reach the best total (and beat it, once a choice has it)."""
        if self._best_total is None:
            return True
        optimistic = sorted(
            (2 * link + half for link, half in zip(links[first:], halves[first:], strict=True)), reverse=True
        )
        bound = 2 * total + sum(optimistic[:remaining])
        return bound >= 2 * self._best_total if self._best is None else bound > 2 * self._best_total

    def _complete(self, chosen: tuple[int, ...], total: int, links: list[int], first: int, spent: int) -> None:
        if not any(self._costs):
            best = max(links[first:])
            if self._beats(total + best):
                self._keep((*chosen, links.index(best, first)), total + best)
            return
        for position in range(first, len(links)):
            if spent + self._costs[position] <= self._budget:
                self._keep((*chosen, position), total + links[position])

    def _beats(self, total: int) -> bool:
        if self._best_total is None:
            return True
        return total >= self._best_total if self._best is None else total > self._best_total

    def _keep(self, chosen: tuple[int, ...], total: int) -> None:
        if self._beats(total):
            self._best, self._best_total = chosen, total
