from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_ext.decide.topology import EXACT_STEPS, best_subset, most_steps

Rows = list[list[int]]


def value(pairs: Rows, gains: Sequence[int], chosen: Sequence[int]) -> int:
    return sum(pairs[i][j] for i, j in combinations(chosen, 2)) + sum(gains[i] for i in chosen)


@st.composite
def problems(draw: st.DrawFn, largest: int) -> tuple[Rows, list[int], int]:
    """Scores that leave many ties, none at all, or differ only slightly; also below zero and beyond 64 bits."""
    count = draw(st.integers(1, largest))
    scores = draw(
        st.sampled_from(
            [
                st.just(1810),
                st.sampled_from([-5, 0, 10, 50, 200]),
                st.integers(1000, 1003),
                st.integers(-(10**3), 10**3),
                st.integers(-(2**70), 2**70),
            ]
        )
    )
    pairs = [[0] * count for _ in range(count)]
    for i, j in combinations(range(count), 2):
        pairs[i][j] = pairs[j][i] = draw(scores)
    gains = draw(st.lists(st.integers(-9, 9), min_size=count, max_size=count))
    return pairs, gains, draw(st.integers(1, count))


@given(problems(largest=10))
def test_of_up_to_ten_members_the_choice_is_the_first_best_of_all_subsets(problem: tuple[Rows, list[int], int]) -> None:
    pairs, gains, size = problem
    first_best = max(combinations(range(len(gains)), size), key=lambda chosen: value(pairs, gains, chosen))
    assert best_subset(pairs, gains, size).members == first_best


@given(problems(largest=9), st.data())
def test_a_budget_leaves_the_choices_it_covers(problem: tuple[Rows, list[int], int], data: st.DataObject) -> None:
    pairs, gains, size = problem
    costs = data.draw(st.lists(st.integers(1, 3), min_size=len(gains), max_size=len(gains)))
    budget = data.draw(st.integers(size - 1, 3 * size))
    covered = [c for c in combinations(range(len(gains)), size) if sum(costs[i] for i in c) <= budget]
    first_best = max(covered, key=lambda chosen: value(pairs, gains, chosen), default=None)
    assert best_subset(pairs, gains, size, costs, budget).members == first_best


@settings(max_examples=40)
@given(problems(largest=16), st.booleans())
def test_scores_do_not_change_the_number_of_steps(problem: tuple[Rows, list[int], int], limited: bool) -> None:
    pairs, gains, size = problem
    nothing, costs = [0] * len(gains), [1] * len(gains) if limited else None
    same = best_subset([nothing for _ in gains], nothing, size, costs, size)
    assert best_subset(pairs, gains, size, costs, size).steps == same.steps


@pytest.mark.parametrize("limited", [False, True])
def test_no_number_of_members_makes_more_steps_than_the_bound(limited: bool) -> None:
    for count, size in [(n, k) for n in range(1, 17) for k in range(1, n + 1)]:
        nothing = [0] * count
        found = best_subset([nothing for _ in nothing], nothing, size, [1] * count if limited else None, size)
        assert found.steps <= most_steps(count, size)


def test_up_to_eighteen_members_are_always_searched_exactly() -> None:
    bounds = {count: max(most_steps(count, size) for size in range(1, count + 1)) for count in range(1, 19)}
    assert bounds[16] == 27126
    assert max(bounds.values()) <= EXACT_STEPS
    assert [max(k for k in range(1, n // 2) if most_steps(n, k) <= EXACT_STEPS) for n in (24, 32, 64)] == [5, 4, 2]


@pytest.mark.parametrize(("size", "islands"), [(8, 1), (16, 2), (24, 3)])
def test_of_many_members_islands_are_still_found_whole(size: int, islands: int) -> None:
    pairs = [[0 if i == j else 220 if i % 4 == j % 4 else 10 for j in range(32)] for i in range(32)]
    whole = tuple(member for member in range(32) if member % 4 < islands)
    assert best_subset(pairs, [0] * 32, size).members == whole


def test_of_many_members_the_budget_is_kept() -> None:
    pairs = [[0 if i == j else 100 if max(i, j) < 12 else 10 for j in range(32)] for i in range(32)]
    costs = [2] * 12 + [1] * 20
    chosen = best_subset(pairs, [0] * 32, 12, costs, 18).members
    assert chosen is not None
    assert sum(costs[member] for member in chosen) == 18
    assert chosen[:6] == (0, 1, 2, 3, 4, 5)
    assert best_subset(pairs, [0] * 32, 12, costs, 11).members is None
