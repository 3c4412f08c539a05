"""Whether the driver limits GPU memory, from what was read on the node."""

from dataclasses import replace

import pytest

from deviceplugin.limits.conditions import NOT_ANSWERED, DriverFacts, Judgement, judge, may_limit, why_no_driver
from deviceplugin.limits.driver import is_recorded

GOOD = DriverFacts(version="615.71.05", is_version_2=True, has_pods=True, gpus=8)


def test_a_node_that_has_all_limits_memory_by_its_driver() -> None:
    assert (why_no_driver(GOOD), may_limit(GOOD)) == ("", True)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (replace(GOOD, version=""), "the driver does not report its release"),
        (replace(GOOD, version="r615"), "the driver does not report its release"),
        (replace(GOOD, version="9" * 5000), "the driver does not report its release"),
        (replace(GOOD, version="614.99"), "the driver is 614.99, and limits by control group need 615"),
        (replace(GOOD, is_version_2=False), "the control groups of this node are not those of version 2"),
        (replace(GOOD, has_pods=False), "kubelet's control groups are not seen below host_root"),
        (replace(GOOD, gpus=0), "no healthy GPU of this node is without MIG"),
        (replace(GOOD, refusal="the driver refuses"), "the driver refuses"),
    ],
)
def test_each_condition_that_is_missing_is_named(facts: DriverFacts, why: str) -> None:
    assert why_no_driver(facts) == why


ONE_FAILS = replace(GOOD, refusal="GPU 3 fails", is_of_gpus=True, is_limiting=True)
ALL_FAIL = replace(ONE_FAILS, is_limiting=False)
REFUSED = replace(GOOD, refusal="Not Supported")
LIMITING = Judgement("")


def test_a_gpu_that_fails_for_less_than_15_seconds_leaves_its_node_the_driver() -> None:
    first = judge(LIMITING, ONE_FAILS, 100.0)
    assert [first, judge(first, ONE_FAILS, 114.9)] == [Judgement("", 100.0)] * 2
    assert judge(first, ONE_FAILS, 115.0) == Judgement("GPU 3 fails", 100.0)
    assert judge(first, GOOD, 115.0) == LIMITING
    assert judge(NOT_ANSWERED, ONE_FAILS, 100.0) == first


def test_while_no_gpu_answers_the_judgement_stays_what_it_was() -> None:
    assert judge(LIMITING, ALL_FAIL, 100.0) == Judgement("", 100.0)
    assert judge(Judgement("no driver"), ALL_FAIL, 100.0) == Judgement("no driver", 100.0)
    first = judge(NOT_ANSWERED, ALL_FAIL, 100.0)
    assert (first.is_known, judge(first, ONE_FAILS, 101.0)) == (False, Judgement("", 100.0))
    assert judge(first, ALL_FAIL, 115.0) == Judgement("GPU 3 fails", 100.0)


def test_what_the_driver_refuses_counts_at_once() -> None:
    assert judge(LIMITING, REFUSED, 100.0) == Judgement("Not Supported")
    assert judge(LIMITING, replace(GOOD, gpus=0), 100.0) == Judgement("no healthy GPU of this node is without MIG")


def test_what_happens_to_a_container_again_and_again_is_recorded_ever_more_rarely() -> None:
    assert [times for times in range(1, 30) if is_recorded(times)] == [1, 2, 4, 8, 16]
