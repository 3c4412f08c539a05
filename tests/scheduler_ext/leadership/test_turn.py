"""Who may write Bindings: the steps of the extenders' own Lease; times are monotonic seconds."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.kubernetes.objects import Lease, LeaseSpec, ObjectMeta
from scheduler_ext.leadership.turn import (
    BEGIN_SECONDS,
    LONGEST_LEASE_SECONDS,
    Turn,
    after_seen,
    free_at,
    lease_seconds,
)
from scheduler_ext.settings import SLACK_SECONDS
from tests.playbook import converse

ME = "host-1_now"


def lease(holder: str | None, renewed: str | None = "t0", seconds: int | None = 20, version: str = "7") -> Lease:
    spec = LeaseSpec(holder_identity=holder, renew_time=renewed, lease_duration_seconds=seconds)
    return Lease(metadata=ObjectMeta(resource_version=version), spec=spec)


def test_another_process_is_waited_for_from_when_its_last_renewal_was_seen() -> None:
    seen = after_seen(Turn(), lease("host-2_a"), 100.0)
    assert seen == Turn(holder="host-2_a", renewed="t0", version="7", ends_at=120.0)
    assert free_at(seen, ME) == 120.0
    assert free_at(after_seen(seen, lease("host-2_a", version="8"), 110.0), ME) == 120.0
    assert free_at(after_seen(seen, lease("host-2_a", "t1"), 110.0), ME) == 130.0


@pytest.mark.parametrize("found", [None, lease(None), lease(""), lease(ME)])
def test_what_no_other_process_holds_is_free(found: Lease | None) -> None:
    assert free_at(after_seen(Turn(), found, 100.0), ME) == 0.0


def test_a_lease_that_somebody_deletes_ends_as_it_would_have() -> None:
    gone = after_seen(after_seen(Turn(), lease("host-2_a"), 100.0), None, 101.0)
    assert (free_at(gone, ME), gone.version) == (120.0, "")


@pytest.mark.parametrize("seconds", [None, 0, 10**9])
def test_nobody_waits_longer_than_five_minutes_whatever_a_lease_says(seconds: int | None) -> None:
    assert free_at(after_seen(Turn(), lease("host-2_a", seconds=seconds), 0.0), ME) == LONGEST_LEASE_SECONDS


@given(
    write_seconds=st.floats(0.5, 60),
    seen_late=st.floats(0, 3600),
    begun=st.floats(0, 1, exclude_max=True),
    received=st.floats(0, 1),
    carried_out=st.floats(0, 1),
    slack=st.floats(0, 1),
)
def test_every_binding_of_the_holder_before_is_over_when_the_next_one_takes_the_lease(
    *, write_seconds: float, seen_late: float, begun: float, received: float, carried_out: float, slack: float
) -> None:
    """It begins in time after it asked for the renewal, reaches the API server before its sender gives it up, and is
    carried out before the API server gives it up, but for what something between them may keep it.
    """
    asked_at = 1000.0
    begins_at = asked_at + begun * BEGIN_SECONDS
    received_at = begins_at + received * write_seconds + slack * SLACK_SECONDS
    ends_at = received_at + carried_out * write_seconds
    other = lease("host-2_a", seconds=lease_seconds(write_seconds))
    assert ends_at <= free_at(after_seen(Turn(), other, asked_at + seen_late), ME) + 1e-6


def following(process: str) -> Callable[[float, Lease | None], Sequence[str]]:
    """A process that follows the Lease. Its commands are what it may do next."""
    turn = Turn()

    def machine(now: float, seen: Lease | None) -> Sequence[str]:
        nonlocal turn
        turn = after_seen(turn, seen, now)
        free = free_at(turn, process)
        return [f"waits until {free:g}"] if free > now else ["may take it"]

    return machine


def test_a_lease_passes_on_once_its_holder_is_silent_whatever_is_deleted() -> None:
    converse(
        following(ME),
        (0, None, ["may take it"]),
        (100, lease("host-2_a"), ["waits until 120"]),
        (110, lease("host-2_a", "t1"), ["waits until 130"]),
        (115, None, ["waits until 130"]),
        (116, lease("host-3_b", "t2", seconds=60), ["waits until 176"]),
        (120, lease(None, None), ["may take it"]),
        (121, lease(ME, "t3"), ["may take it"]),
    )
