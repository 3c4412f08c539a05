"""The lock's rules as a table."""

from datetime import UTC, datetime, timedelta

import pytest

from scheduler_ext.cluster.pod_index import PodName
from scheduler_ext.verbs.lock_rules import Owner, Take, Wait, is_held_by, judge

T0, TTL = datetime(2030, 1, 1, tzinfo=UTC), timedelta(minutes=5)
OURS = PodName(namespace="ns", name="ours")
THEIRS = "2030-01-01T00:00:00Z,ns,theirs"
SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("value", "owner", "age", "verdict"),
    [
        ("", Owner.WAITING, SECOND, Take),
        (THEIRS, Owner.WAITING, SECOND, Wait),
        (THEIRS, Owner.WAITING, TTL - SECOND, Wait),
        (THEIRS, Owner.WAITING, TTL, Take),
        (THEIRS, Owner.SERVED, SECOND, Take),
        (THEIRS, Owner.GONE, SECOND, Take),
        (THEIRS, Owner.ELSEWHERE, SECOND, Take),
        ("2030-01-01T00:00:00Z,ns,ours", Owner.OURSELVES, SECOND, Take),
        ("2030-01-01T00:00:00Z,ns,ours", Owner.OURSELVES, TTL, Take),
        ("2030-01-01T00:00:00Z,ns,ours", Owner.GONE, SECOND, Take),
        ("2030-01-01T00:00:00Z,other,ours", Owner.WAITING, SECOND, Wait),
        ("2030-01-01T00:00:00Z", Owner.GONE, SECOND, Wait),
        ("2030-01-01T00:00:00Z", Owner.GONE, TTL, Take),
        ("garbage", Owner.GONE, TTL - SECOND, Wait),
        ("garbage", Owner.GONE, TTL, Take),
        ("2031-01-01T00:00:00Z,ns,theirs", Owner.WAITING, TTL - SECOND, Wait),
        ("2031-01-01T00:00:00Z,ns,theirs", Owner.WAITING, TTL, Take),
    ],
)
def test_a_lock_is_taken_kept_or_waited_for(value: str, owner: Owner, age: timedelta, verdict: type) -> None:
    assert isinstance(judge(value, OURS, owner, first_seen=T0, now=T0 + age, ttl=TTL), verdict)


def test_a_taken_lock_names_the_time_and_the_pod() -> None:
    assert judge("", OURS, Owner.GONE, first_seen=T0, now=T0, ttl=TTL) == Take(value="2030-01-01T00:00:00Z,ns,ours")


def test_whoever_waits_is_told_for_whom_and_until_when() -> None:
    assert judge(THEIRS, OURS, Owner.WAITING, first_seen=T0, now=T0, ttl=TTL) == Wait(
        until=T0 + TTL,
        why="pod ns/theirs holds its lock since 2030-01-01T00:00:00+00:00; "
        "it ends at 2030-01-01T00:05:00+00:00 at the latest",
    )


@pytest.mark.parametrize("stamp", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2031-01-01T00:00:00Z"])
def test_no_time_in_a_lock_holds_a_node_for_longer_than_a_lock_may(stamp: str) -> None:
    for owner in Owner:
        assert isinstance(judge(f"{stamp},ns,theirs", OURS, owner, first_seen=T0, now=T0 + TTL, ttl=TTL), Take)
        judge(f"{stamp},ns,theirs", OURS, owner, first_seen=T0, now=T0, ttl=TTL)


def test_only_the_owner_may_remove_a_lock() -> None:
    assert is_held_by("2030-01-01T00:00:00Z,ns,ours", "", OURS, "uid")
    assert is_held_by("2030-01-01T00:00:00Z,ns,ours", "uid", OURS, "uid")
    assert not is_held_by("2030-01-01T00:00:00Z,ns,ours", "uid of its namesake", OURS, "uid")
    assert not any(is_held_by(value, "", OURS, "uid") for value in (THEIRS, "", "garbage", "2030-01-01T00:00:00Z"))
