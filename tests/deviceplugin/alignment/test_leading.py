"""NUMA nodes are closed and opened to kubelet when no decision of before is on its way."""

from deviceplugin.alignment.zones import QUIET_SECONDS, TAKEN_SECONDS, Leading, next_leading

NONE, FIRST = frozenset[int](), frozenset({0})


def test_a_change_is_shown_for_a_while_before_it_is_made() -> None:
    state = next_leading(Leading(), FIRST, is_shown=False, is_settled=True, now=0.0)
    assert (state, state.is_changing) == (Leading(NONE, FIRST), True)
    state = next_leading(state, FIRST, is_shown=True, is_settled=True, now=5.0)
    assert state == Leading(NONE, FIRST, 5.0)
    state = next_leading(state, FIRST, is_shown=True, is_settled=True, now=5.0 + QUIET_SECONDS)
    assert (state.closed, state.is_changing) == (FIRST, True)


def test_a_change_that_is_made_is_shown_until_kubelet_has_taken_it() -> None:
    made = Leading(FIRST, FIRST, made_at=5.0)
    assert next_leading(made, NONE, is_shown=True, is_settled=True, now=5.0) == made
    state = next_leading(made, FIRST, is_shown=True, is_settled=True, now=5.0 + TAKEN_SECONDS)
    assert (state, state.is_changing) == (Leading(FIRST, FIRST), False)


def test_a_change_waits_for_pods_that_kubelet_has_not_admitted() -> None:
    state = Leading(NONE, FIRST, 5.0)
    assert next_leading(state, FIRST, is_shown=True, is_settled=False, now=99.0) == state


def test_a_change_that_is_not_shown_any_more_begins_again() -> None:
    assert next_leading(Leading(NONE, FIRST, 5.0), FIRST, is_shown=False, is_settled=True, now=99.0).shown_since is None


def test_a_change_that_is_not_wanted_any_more_is_none() -> None:
    state = next_leading(Leading(NONE, FIRST, 5.0), NONE, is_shown=True, is_settled=True, now=99.0)
    assert (state, state.is_changing) == (Leading(), False)


def test_all_numa_nodes_are_open_at_once_where_the_node_shows_none() -> None:
    """Such a change is never shown, so it would wait for ever: kubelet has another policy now, or one NUMA node."""
    for state in (Leading(FIRST, FIRST), Leading(NONE, FIRST), Leading(FIRST, FIRST, made_at=99.0)):
        assert next_leading(state, None, is_shown=False, is_settled=False, now=99.0) == Leading()
