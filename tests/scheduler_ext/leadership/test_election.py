"""The steps of an election as tables; times are monotonic seconds."""

import pytest

from proto.kubernetes.objects import Lease, LeaseSpec
from scheduler_ext.leadership.election import (
    ElectionStanding,
    Role,
    after_another_had_the_turn,
    after_catching_up,
    after_lease,
    after_time,
    is_held_by,
)

ME = "host-1"


def lease(holder: str, renewed: str = "t0", seconds: int | None = 15) -> Lease:
    return Lease(spec=LeaseSpec(holder_identity=holder, renew_time=renewed, lease_duration_seconds=seconds))


def leading(now: float = 0.0) -> ElectionStanding:
    return after_catching_up(after_lease(ElectionStanding(), lease(f"{ME}_a"), ME, now))


@pytest.mark.parametrize(
    ("holder", "held"),
    [
        ("host-1_3f2b", True),
        ("host-1", True),
        ("host-11_3f2b", False),
        ("host-1-other_3f2b", False),
        ("host_1", False),
        ("", False),
    ],
)
def test_a_holder_is_matched_exactly_up_to_the_underscore(holder: str, held: bool) -> None:
    assert is_held_by(holder, ME) == held
    assert not is_held_by(holder, "")


def test_who_holds_the_lease_takes_over_and_leads_once_it_has_caught_up() -> None:
    taking = after_lease(ElectionStanding(), lease("host-1_a"), ME, 0.0)
    assert taking == ElectionStanding(role=Role.TAKING_OVER, holder="host-1_a", renewed="t0", expires_at=15.0)
    assert after_catching_up(taking).role is Role.LEADER
    assert after_catching_up(ElectionStanding()).role is Role.FOLLOWER


def test_a_renewal_keeps_the_role_and_moves_the_end() -> None:
    renewed = after_lease(leading(), lease("host-1_a", "t1"), ME, 10.0)
    assert (renewed.role, renewed.expires_at) == (Role.LEADER, 25.0)


def test_seeing_the_same_lease_again_is_no_renewal() -> None:
    again = after_lease(leading(), lease("host-1_a"), ME, 10.0)
    assert (again.role, again.expires_at) == (Role.LEADER, 15.0)
    assert after_lease(leading(), lease("host-1_a"), ME, 15.0).role is Role.FOLLOWER


def test_a_leader_that_does_not_renew_follows_and_then_takes_over_anew() -> None:
    assert after_time(leading(), 14.9).role is Role.LEADER
    expired = after_time(leading(), 15.0)
    assert expired.role is Role.FOLLOWER
    assert after_lease(expired, lease("host-1_a", "t1"), ME, 16.0).role is Role.TAKING_OVER


@pytest.mark.parametrize("next_lease", [None, lease("host-2_b"), lease("")])
def test_who_lost_the_lease_follows(next_lease: Lease | None) -> None:
    assert after_lease(leading(), next_lease, ME, 1.0).role is Role.FOLLOWER


def test_another_holder_on_our_host_means_taking_over_anew() -> None:
    assert after_lease(leading(), lease("host-1_b", "t1"), ME, 1.0).role is Role.TAKING_OVER


def test_a_lease_without_a_duration_lasts_as_kube_schedulers_does() -> None:
    assert after_lease(ElectionStanding(), lease("host-1_a", seconds=None), ME, 0.0).expires_at == 15.0


def test_who_leads_takes_over_anew_once_another_had_the_turn() -> None:
    assert after_another_had_the_turn(leading()).role is Role.TAKING_OVER
    assert after_another_had_the_turn(ElectionStanding()).role is Role.FOLLOWER
