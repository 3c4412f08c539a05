from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.devices import DeviceUUID, PairScores
from scheduler_ext.decide.topology import Matrix, best_connected, least_connected, pair_matrix
from tests.scheduler_ext.decide.links import islands, matrix, nvswitch, striped_islands, total_score

A, B, C, D = map(DeviceUUID, "ABCD")
EVEN = tuple(range(0, 16, 2))


@st.composite
def matrices(draw: st.DrawFn) -> Matrix:
    count = draw(st.integers(2, 7))
    kinds: list[list[int | None]] = [[0], [None], [-5, None, 10, 50, 200], [-2, -1, 0, None], [*range(-20, 20)]]
    scores = draw(st.sampled_from(kinds))
    pairs = {pair: draw(st.sampled_from(scores)) for pair in combinations(range(count), 2)}
    return matrix(count, lambda i, j: pairs[i, j])


@given(matrices(), st.data())
def test_total_then_known_links_then_remainder_then_visit_order_decide(links: Matrix, data: st.DataObject) -> None:
    everyone = range(len(links))
    size = data.draw(st.integers(1, len(links)))

    def rank(chosen: tuple[int, ...]) -> tuple[int, int, int]:
        missing = sum(links[i][j] is None for i, j in combinations(chosen, 2))
        return total_score(links, chosen), -missing, total_score(links, [i for i in everyone if i not in chosen])

    assert best_connected(links, size) == max(combinations(everyone, size), key=rank)


@given(matrices(), st.data())
def test_without_the_remainder_the_first_of_the_best_totals_is_taken(links: Matrix, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(links)))
    first_best = max(combinations(range(len(links)), size), key=lambda chosen: total_score(links, chosen))
    assert best_connected(links, size, weigh_remainder=False) == first_best


@given(matrices(), st.data())
def test_a_budget_leaves_only_the_choices_it_covers(links: Matrix, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(links)))
    costs = data.draw(st.lists(st.integers(1, 3), min_size=len(links), max_size=len(links)))
    budget = data.draw(st.integers(1, 3 * size))
    covered = [s for s in combinations(range(len(links)), size) if sum(costs[i] for i in s) <= budget]
    found = best_connected(links, size, costs, budget)
    if found is None:
        assert covered == []
    else:
        assert found in covered
        assert total_score(links, found) == max(total_score(links, subset) for subset in covered)


def test_eight_of_sixteen_are_the_first_among_equal_links_and_one_island_of_two() -> None:
    assert best_connected(nvswitch(16), 8) == tuple(range(8))
    assert best_connected(striped_islands(16, 2), 8) == EVEN
    assert best_connected(islands(16, of=4), 8) == tuple(range(8))


def test_a_pair_is_taken_from_the_island_that_is_already_broken() -> None:
    """Of four islands of four one has lost a GPU; every pair inside an island is as good."""
    free = [gpu for gpu in range(16) if gpu != 9]
    links = islands(16, of=4)
    left = matrix(15, lambda i, j: links[free[i]][free[j]])
    chosen = best_connected(left, 2)
    assert chosen is not None
    assert [free[position] for position in chosen] == [8, 10]
    assert best_connected(left, 2, weigh_remainder=False) == (0, 1)


def test_two_pairs_joined_by_one_link_are_not_both_broken() -> None:
    """Pairs 0-1, 2-3, 4-5 by two NVLinks each, with one more between 1 and 2."""
    scores = {(0, 1): 220, (2, 3): 220, (4, 5): 220, (1, 2): 110}
    links = matrix(6, lambda i, j: scores.get((i, j), 10))
    assert best_connected(links, 2) == (4, 5)


def test_a_missing_link_loses_to_every_link_and_to_a_known_score_of_zero() -> None:
    assert best_connected(matrix(3, lambda i, j: None if i == 0 else 10), 2) == (1, 2)
    assert best_connected(matrix(3, lambda i, j: None if i == 0 else 0), 2) == (1, 2)


def test_a_pair_is_read_in_the_row_of_the_gpu_that_is_visited_first() -> None:
    scores: PairScores = {A: {B: 100, C: -5}, B: {A: 10, C: 20}, C: {A: 30}}
    assert pair_matrix(scores, (A, B, C)) == ((0, 100, -5), (100, 0, 20), (-5, 20, 0))
    assert pair_matrix(scores, (C, B, A)) == ((0, None, 30), (None, 0, 10), (30, 10, 0))


@pytest.mark.parametrize(("free", "taken"), [("ABCD", "A"), ("ACD", "A"), ("ABD", "D"), ("BD", "B")])
def test_one_gpu_is_the_one_whose_partner_is_gone(free: str, taken: str) -> None:
    """A-B and C-D are joined by two NVLinks each."""
    rows = {"A": "B", "B": "A", "C": "D", "D": "C"}
    scores = {
        DeviceUUID(gpu): {DeviceUUID(peer): 220 if peer == partner else 10 for peer in "ABCD" if peer != gpu}
        for gpu, partner in rows.items()
    }
    order = [DeviceUUID(gpu) for gpu in free]
    assert order[least_connected(scores, order)] == taken
