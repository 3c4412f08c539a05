from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from scheduler_ext.scheduling.topology import best_connected, total_score

Rows = list[list[int]]


@st.composite
def matrices(draw: st.DrawFn) -> Rows:
    size = draw(st.integers(2, 7))
    scores = draw(st.sampled_from([[0], [-5, 10, 50, 200], [20, 600], list(range(-20, 20))]))
    rows = [[0] * size for _ in range(size)]
    for i, j in combinations(range(size), 2):
        rows[i][j] = rows[j][i] = draw(st.sampled_from(scores))
    return rows


@given(matrices(), st.data())
def test_the_choice_is_the_first_of_the_best_subsets(rows: Rows, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(rows)))
    subsets = list(combinations(range(len(rows)), size))
    best = max(total_score(rows, subset) for subset in subsets)
    assert best_connected(rows, size) == next(s for s in subsets if total_score(rows, s) == best)


@given(matrices(), st.data())
def test_a_budget_leaves_only_the_choices_it_covers(rows: Rows, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(rows)))
    costs = data.draw(st.lists(st.integers(1, 3), min_size=len(rows), max_size=len(rows)))
    budget = data.draw(st.integers(1, 3 * size))
    covered = [s for s in combinations(range(len(rows)), size) if sum(costs[i] for i in s) <= budget]
    found = best_connected(rows, size, costs, budget)
    if found is None:
        assert covered == []
    else:
        best = max(total_score(rows, subset) for subset in covered)
        assert found == next(s for s in covered if total_score(rows, s) == best)


def test_eight_of_sixteen_are_found_among_equal_links_and_in_islands() -> None:
    equal = [[0 if i == j else 1200 for j in range(16)] for i in range(16)]
    assert best_connected(equal, 8) == tuple(range(8))
    islands = [[0 if i == j else 600 if i % 2 == j % 2 else 20 for j in range(16)] for i in range(16)]
    assert best_connected(islands, 8) == tuple(range(0, 16, 2))
