"""The lock's rules as a table."""

from datetime import UTC, datetime, timedelta

import pytest

from scheduler_ext.cluster.pod_index import PodName
from scheduler_ext.verbs.lock_rules import LockWait, is_held_by, lock_to_write

T0, TTL = datetime(2030, 1, 1, tzinfo=UTC), timedelta(minutes=5)
OURS = PodName(namespace="ns", name="ours")
THEIRS = "2030-01-01T00:00:00Z,ns,theirs"
SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("value", "waits", "age", "verdict"),
    [
        ("", True, SECOND, str),
        (THEIRS, True, SECOND, LockWait),
        (THEIRS, True, TTL - SECOND, LockWait),
        (THEIRS, True, TTL, str),
        (THEIRS, False, SECOND, str),
        ("2030-01-01T00:00:00Z,ns,ours", False, SECOND, str),
        ("2030-01-01T00:00:00Z,ns,ours", False, TTL, str),
        ("2030-01-01T00:00:00Z,other,ours", True, SECOND, LockWait),
        ("2030-01-01T00:00:00Z", False, SECOND, LockWait),
        ("2030-01-01T00:00:00Z", False, TTL, str),
        ("garbage", False, TTL - SECOND, LockWait),
        ("garbage", False, TTL, str),
        ("2031-01-01T00:00:00Z,ns,theirs", True, TTL - SECOND, LockWait),
        ("2031-01-01T00:00:00Z,ns,theirs", True, TTL, str),
    ],
)
def test_a_lock_is_taken_kept_or_waited_for(value: str, waits: bool, age: timedelta, verdict: type) -> None:
    assert isinstance(lock_to_write(value, OURS, owner_waits=waits, first_seen=T0, now=T0 + age, ttl=TTL), verdict)


def test_a_taken_lock_names_the_time_and_the_pod() -> None:
    assert lock_to_write("", OURS, owner_waits=False, first_seen=T0, now=T0, ttl=TTL) == "2030-01-01T00:00:00Z,ns,ours"


def test_whoever_waits_is_told_for_whom_and_until_when() -> None:
    assert lock_to_write(THEIRS, OURS, owner_waits=True, first_seen=T0, now=T0, ttl=TTL) == LockWait(
        until=T0 + TTL,
        why="pod ns/theirs holds its lock since 2030-01-01T00:00:00+00:00; "
        "it ends at 2030-01-01T00:05:00+00:00 at the latest",
    )


@pytest.mark.parametrize("stamp", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2031-01-01T00:00:00Z"])
def test_no_time_in_a_lock_holds_a_node_for_longer_than_a_lock_may(stamp: str) -> None:
    for waits in (True, False):
        verdict = lock_to_write(f"{stamp},ns,theirs", OURS, owner_waits=waits, first_seen=T0, now=T0 + TTL, ttl=TTL)
        assert isinstance(verdict, str)
        lock_to_write(f"{stamp},ns,theirs", OURS, owner_waits=waits, first_seen=T0, now=T0, ttl=TTL)


def test_only_the_owner_may_remove_a_lock() -> None:
    assert is_held_by("2030-01-01T00:00:00Z,ns,ours", "", OURS, "uid")
    assert is_held_by("2030-01-01T00:00:00Z,ns,ours", "uid", OURS, "uid")
    assert not is_held_by("2030-01-01T00:00:00Z,ns,ours", "uid of its namesake", OURS, "uid")
    assert not any(is_held_by(value, "", OURS, "uid") for value in (THEIRS, "", "garbage", "2030-01-01T00:00:00Z"))
