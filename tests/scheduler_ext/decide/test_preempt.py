from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from scheduler_ext.decide.effort import finished
from scheduler_ext.decide.preempt import GpuHolder, by_importance, victims

HELD = {"low": 1, "lower": 2, "peer": 4, "old": 1, "young": 1}
HOLDERS = (
    GpuHolder(uid="low", priority=5),
    GpuHolder(uid="lower", priority=1),
    GpuHolder(uid="peer", priority=10),
    GpuHolder(uid="old", priority=0, created="2030-01-01T00:00:00Z"),
    GpuHolder(uid="young", priority=0, created="2030-01-02T00:00:00Z"),
)


def needs(gpus: int) -> Callable[[frozenset[str]], bool]:
    return lambda gone: sum(HELD[uid] for uid in gone if uid in HELD) >= gpus


def chosen(gpus: int, *proposed: str, priority: int = 10) -> set[str] | None:
    found = finished(victims(priority, frozenset(proposed), HOLDERS, needs(gpus)))
    return None if found is None else set(found)


def test_nobody_goes_when_the_pod_fits_anyway() -> None:
    assert chosen(0) == set()


def test_the_least_important_pods_go_first_and_of_equals_the_younger() -> None:
    assert chosen(1) == {"young"}
    assert chosen(2) == {"old", "young"}


def test_one_larger_pod_may_go_beside_smaller_ones() -> None:
    assert chosen(3) == {"lower", "young"}


def test_pods_of_equal_priority_stay_even_if_the_node_is_lost() -> None:
    assert chosen(5) == {"low", "lower", "old", "young"}
    assert chosen(6) is None
    assert chosen(1, priority=0) is None


def test_what_kube_scheduler_proposed_stays_and_is_added_to() -> None:
    assert chosen(1, "low") == {"low"}
    assert chosen(2, "low") == {"low", "young"}
    assert chosen(1, "no-gpu-pod") == {"no-gpu-pod", "young"}


def test_a_proposal_against_the_priorities_is_refused() -> None:
    assert chosen(1, "peer") is None


def test_the_most_important_victim_is_named_first() -> None:
    """By its priority kube-scheduler compares this node's victims with those of others (pickOneNodeForPreemption)."""
    chosen = frozenset({"low", "lower", "old", "young"})
    assert by_importance(["old"], chosen, HOLDERS) == ("low", "lower", "old", "young")
    assert by_importance(["young"], chosen, HOLDERS) == ("low", "lower", "young", "old")
    assert by_importance(["low", "young"], chosen, HOLDERS) == ("low", "lower", "young", "old")


def test_a_victim_without_gpus_stays_where_kube_scheduler_put_it() -> None:
    chosen = frozenset({"cpu", "low", "old", "young"})
    assert by_importance(["cpu"], chosen, HOLDERS) == ("cpu", "low", "old", "young")
    assert by_importance(["low", "cpu", "young"], chosen, HOLDERS) == ("low", "cpu", "young", "old")


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), max_size=7),
    st.integers(0, 5),
    st.integers(0, 12),
)
def test_no_victim_is_unneeded_and_none_is_as_important(pods: list[tuple[int, int]], priority: int, gpus: int) -> None:
    holders = [GpuHolder(uid=str(number), priority=each) for number, (each, _) in enumerate(pods)]

    def fits(gone: frozenset[str]) -> bool:
        return sum(pods[int(uid)][1] for uid in gone) >= gpus

    found = finished(victims(priority, frozenset(), holders, fits))
    lower = frozenset(holder.uid for holder in holders if holder.priority < priority)
    assert (found is None) == (not fits(lower))
    if found is not None:
        assert found <= lower
        assert fits(found)
        assert not any(fits(found - {uid}) for uid in found)


def test_looks_are_few_where_few_have_to_go_and_bounded_where_all_do() -> None:
    holders = [GpuHolder(uid=f"{number:03d}", priority=0) for number in range(200)]
    looks = 0

    def needing(gpus: int) -> Callable[[frozenset[str]], bool]:
        def fits(gone: frozenset[str]) -> bool:
            nonlocal looks
            looks += 1
            return len(gone) >= gpus

        return fits

    for gpus, most in ((1, 20), (8, 30), (200, 3 * 200)):
        looks = 0
        found = finished(victims(1, frozenset(), holders, needing(gpus)))
        assert found is not None
        assert len(found) == gpus
        assert looks <= most, gpus
