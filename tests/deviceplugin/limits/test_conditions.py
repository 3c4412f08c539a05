"""Whether the driver limits GPU memory, from what was read on the node."""

from dataclasses import replace

import pytest

from deviceplugin.limits.conditions import DriverFacts, may_limit, why_no_driver

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
