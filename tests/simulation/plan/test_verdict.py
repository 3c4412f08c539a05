"""The first line of a report: which policy, by how much, how sure."""

from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.plan.gauge import Reading
from simulation.plan.outcome import Delay, Home, PlanOutcome, PlanRun, Sample, SeveralGpus
from simulation.plan.verdict import interval, verdict


def outcome(
    policy: str,
    allocated: float,
    seed: int | None = None,
    *,
    placed: int = 8,
    whole: int = 0,
    before: bool = False,
    moves: int = 0,
    delay: Delay | None = None,
) -> PlanOutcome:
    """Of ten pods and 100 GPUs."""
    end = Reading(gpus=100, allocated=allocated, fragmented=0.0, whole=whole, islands=0, whole_islands=0)
    return PlanOutcome(
        run=PlanRun(policy=policy, seed=seed, before=before),
        pods=10,
        placed=placed,
        asked=100.0,
        at_capacity=None,
        end=end,
        several=SeveralGpus(pods=0, placed=0, gbps=None),
        sizes=[],
        waiting=[],
        moves=[Home(pod=f"ml/p{at}", node="n2", was="n1") for at in range(moves)],
        stuck=[],
        delay=delay,
        samples=[Sample(seconds=0.0, asked=0.0, reading=end, waiting=0)],
    )


def test_the_policy_that_gives_most_gpus_is_named_however_many_pods_another_one_places() -> None:
    runs = [outcome("binpack", 95.0, placed=4), outcome("spread", 80.0, placed=9)]
    assert verdict(runs) == (
        "binpack gives most to pods: 95.0 % of all GPUs, 15.0 points more than spread; "
        "one order of the pods, --seeds 1-10 shows how sure that is."
    )


def test_a_difference_that_holds_in_every_order_is_sure_and_has_its_interval() -> None:
    runs = [outcome(policy, value + seed, seed) for seed in (1, 2, 3) for policy, value in (("a", 90.0), ("b", 80.0))]
    runs[0] = outcome("a", 92.0, 1)
    text = verdict(runs)
    assert text.startswith("a gives most to pods: 92.3 % of all GPUs, 10.3 points more than b; 95 % sure of ")
    assert text.endswith(", 3 orders of the pods.")


def test_a_difference_that_may_be_chance_is_not_called_one() -> None:
    values = {"a": (90.0, 80.0, 91.0), "b": (80.0, 90.0, 88.0)}
    runs = [outcome(policy, value, seed) for policy, each in values.items() for seed, value in enumerate(each)]
    assert verdict(runs).startswith("not clear which policy gives most to pods: a (87.0 % of all GPUs) or b (86.0 %")
    assert "95 % sure of −" in verdict(runs)


def test_policies_that_do_the_same_share_the_first_place() -> None:
    runs = [outcome("a", 90.0), outcome("b", 90.0), outcome("c", 80.0)]
    assert verdict(runs).startswith("a (like b) gives most to pods")
    assert "10.0 points more than c" in verdict(runs)
    assert (
        verdict(runs[:2]) == "all 2 policies do the same here: 8 of 10 pods placed, 90.0 % of all GPUs given to pods."
    )


def test_a_difference_that_no_figure_shows_is_none() -> None:
    runs = [outcome("a", 90.01), outcome("b", 90.03), outcome("c", 80.0)]
    assert verdict(runs).startswith("b (like a) gives most to pods: 90.0 % of all GPUs, 10.0 points more than c")
    assert verdict(runs[:2]).startswith("all 2 policies do the same here")


def test_one_policy_over_several_orders_is_told_by_its_mean() -> None:
    runs = [outcome("a", 60.0, 1, placed=4), outcome("a", 80.0, 2, placed=7)]
    assert verdict(runs) == (
        "a: 5.5 of 10 pods placed, 70.0 % of all GPUs given to pods, mean of 2 orders of the pods."
    )


def test_where_all_find_room_whole_gpus_that_stay_free_decide() -> None:
    runs = [outcome("a", 50.0, placed=10, whole=3), outcome("b", 51.0, placed=10, whole=7)]
    assert verdict(runs).startswith(
        "b keeps most for large pods, where all find room: 7.0 whole GPUs stay free, 4.0 more"
    )


def test_with_times_waiting_decides_and_pods_that_are_never_placed_come_first() -> None:
    def waited(hours: float, never: int) -> Delay:
        return Delay(mean=hours * 3600, p95=0.0, longest=0.0, at_once=0, placed=8, never=never, allocated=50.0)

    runs = [outcome("a", 50.0, delay=waited(1.0, 0)), outcome("b", 50.0, delay=waited(3.0, 0))]
    assert verdict(runs).startswith("a lets pods with GPUs wait least: 1.00 h on average, 2.00 h less than b")
    runs = [outcome("a", 50.0, delay=waited(1.0, 5)), outcome("b", 50.0, delay=waited(3.0, 0))]
    assert verdict(runs).startswith("b leaves the fewest pods without a node")


def test_what_added_and_drained_nodes_change_is_said() -> None:
    runs = [outcome("a", 50.0, placed=2, before=True), outcome("a", 60.0, placed=7, moves=3)]
    assert verdict(runs).endswith(
        " With a 3 of 3 pods of drained nodes find another; 4 of 7 new pods find room, without the change 2."
    )


def test_what_added_nodes_change_is_a_mean_over_the_orders() -> None:
    runs = [outcome("a", 50.0, seed, placed=seed, before=True) for seed in (1, 2)]
    runs += [outcome("a", 60.0, seed, placed=2 * seed) for seed in (1, 2)]
    assert verdict(runs).endswith(" With a 3 of 10 new pods find room, without the change 1.5.")


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=30))
def test_an_interval_is_around_its_mean_and_narrow_where_all_are_alike(values: list[float]) -> None:
    found = interval(values)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.middle <= found.high
    assert found.middle == pytest.approx(mean(values))
    same = interval([values[0]] * len(values))
    assert same.low == pytest.approx(values[0]) == same.high


def test_the_interval_is_students() -> None:
    found = interval([1.0, 2.0, 3.0])
    assert [found.low, found.high] == pytest.approx([2 - 2.4843, 2 + 2.4843], abs=1e-3)
