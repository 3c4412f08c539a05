"""How many pods all daemons together may evict within an hour."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.remediation.budget import Spent, decode_evictions, encode_evictions, reserve
from deviceplugin.settings import RemediationSettings
from proto.annotations.errors import AnnotationError
from proto.annotations.keys import LEASE_EVICTIONS
from proto.kubernetes.objects import Lease, ObjectMeta
from tests.deviceplugin.remediation.test_step import MINUTE, T0

SETTINGS = RemediationSettings(per_hour=2, cluster_per_hour=3)


def lease(*minutes_and_nodes: tuple[int, str]) -> Lease:
    value = encode_evictions([(T0 + minutes * MINUTE, node) for minutes, node in minutes_and_nodes])
    return Lease(metadata=ObjectMeta(name="l", resource_version="7", annotations={LEASE_EVICTIONS: value}))


def after(lease: Lease, node: str, minutes: int) -> list[tuple[float, str]]:
    """What the Lease says after the eviction; minutes after T0."""
    body = reserve(lease, node, T0 + minutes * MINUTE, SETTINGS)
    assert not isinstance(body, Spent)
    metadata = body["metadata"]
    assert isinstance(metadata, dict)
    assert metadata["resourceVersion"] == "7"
    return [((at - T0) / MINUTE, whose) for at, whose in decode_evictions(metadata["annotations"][LEASE_EVICTIONS])]


def test_an_eviction_is_added_to_those_of_the_last_hour() -> None:
    empty = Lease(metadata=ObjectMeta(name="l", resource_version="7"))
    assert after(empty, "a", 0) == [(0, "a")]
    assert after(lease((0, "a"), (10, "b")), "b", 60) == [(10, "b"), (60, "b")]


def test_a_node_and_the_cluster_have_limits() -> None:
    assert reserve(lease((0, "a"), (5, "a")), "a", T0 + 6 * MINUTE, SETTINGS) == Spent(
        T0 + 60 * MINUTE, "2 pods were evicted from unhealthy GPUs from node a within the hour"
    )
    assert after(lease((0, "a"), (5, "a")), "b", 6) == [(0, "a"), (5, "a"), (6, "b")]
    assert reserve(lease((0, "a"), (5, "a"), (6, "b")), "c", T0 + 7 * MINUTE, SETTINGS) == Spent(
        T0 + 60 * MINUTE, "3 pods were evicted from unhealthy GPUs in the cluster within the hour"
    )


def test_limits_that_were_lowered_hold_until_as_many_are_an_hour_ago() -> None:
    lower = replace(SETTINGS, per_hour=1)
    assert reserve(lease((0, "a"), (5, "a")), "a", T0 + 6 * MINUTE, lower) == Spent(
        T0 + 65 * MINUTE, "1 pods were evicted from unhealthy GPUs from node a within the hour"
    )


def test_a_clock_that_was_ahead_stops_no_node_for_longer_than_two_hours() -> None:
    assert after(lease((100_000, "a")), "b", 0) == [(0, "b")]
    ahead = lease((59, "a"), (59, "a"))
    found = reserve(ahead, "a", T0, SETTINGS)
    assert isinstance(found, Spent)
    assert found.until == T0 + 119 * MINUTE
    assert after(ahead, "a", 119) == [(119, "a")]


def test_a_clock_that_was_far_ahead_stops_not_even_its_own_node() -> None:
    assert after(lease((100_000, "a"), (100_000, "a")), "a", 0) == [(0, "a")]


@pytest.mark.parametrize("value", ["", "{}", '[["2030-01-01T00:00:00Z"]]', '[["soon","a"]]', '[["2030-01-01","a"]]'])
def test_a_count_that_cannot_be_read_is_refused(value: str) -> None:
    broken = Lease(metadata=ObjectMeta(annotations={LEASE_EVICTIONS: value}))
    with pytest.raises(AnnotationError, match=r"topogpu\.io/evictions"):
        reserve(broken, "a", T0, SETTINGS)


@given(st.lists(st.tuples(st.integers(0, 300), st.sampled_from("abc")), max_size=60))
def test_no_hour_ever_has_more_than_the_limits(asked: list[tuple[int, str]]) -> None:
    held, taken = Lease(metadata=ObjectMeta()), []
    for minutes, node in sorted(asked):
        now = T0 + minutes * MINUTE
        body = reserve(held, node, now, SETTINGS)
        if isinstance(body, Spent):
            assert now < body.until <= now + timedelta(hours=1)
            continue
        taken.append((minutes, node))
        held = Lease(metadata=ObjectMeta(annotations=body["metadata"]["annotations"]))  # type: ignore[index]
    for minutes, _ in taken:
        hour = [node for at, node in taken if minutes <= at < minutes + 60]
        assert len(hour) <= 3
        assert all(hour.count(node) <= 2 for node in "abc")
