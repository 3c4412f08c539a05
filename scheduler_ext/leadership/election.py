"""Decides who leads from the Lease of the kube-scheduler beside us: one pure step for each event.

The two clocks are not compared. A holder leads until the Lease's duration has passed since we saw its renewal.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from proto.kubernetes.objects import Lease

DEFAULT_LEASE_SECONDS = 15
"""The duration of a Lease that does not state it."""


class Role(StrEnum):
    FOLLOWER = "follower"
    TAKING_OVER = "taking over"
    """Holds the Lease, but has not yet seen everything that the previous leader may have decided."""
    LEADER = "leader"


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionStanding:
    """The election as this replica sees it. `expires_at` is in monotonic seconds; `renewed` is the Lease's own text."""

    role: Role = Role.FOLLOWER
    holder: str = ""
    renewed: str = ""
    expires_at: float = 0.0


def after_lease(standing: ElectionStanding, lease: Lease | None, identity: str, now: float) -> ElectionStanding:
    """The Lease was seen; None if it does not exist."""
    standing = after_time(standing, now)
    if lease is None:
        return ElectionStanding()
    holder, renewed = lease.spec.holder_identity or "", lease.spec.renew_time or ""
    if (holder, renewed) == (standing.holder, standing.renewed):
        return standing
    seconds = float(lease.spec.lease_duration_seconds or DEFAULT_LEASE_SECONDS)
    seen = replace(standing, holder=holder, renewed=renewed, expires_at=now + seconds)
    if not is_held_by(holder, identity):
        return replace(seen, role=Role.FOLLOWER)
    # A holder in between may have decided, even one with our host's name.
    kept = standing.role is not Role.FOLLOWER and holder == standing.holder
    return seen if kept else replace(seen, role=Role.TAKING_OVER)


def after_time(standing: ElectionStanding, now: float) -> ElectionStanding:
    """A holder that did not renew in time does not lead."""
    return replace(standing, role=Role.FOLLOWER) if now >= standing.expires_at else standing


def after_catching_up(standing: ElectionStanding) -> ElectionStanding:
    """Returns whether everything that was decided before the take-over is known."""
    return replace(standing, role=Role.LEADER) if standing.role is Role.TAKING_OVER else standing


def after_another_had_the_turn(standing: ElectionStanding) -> ElectionStanding:
    """Another process may have bound pods since this one took over."""
    return replace(standing, role=Role.TAKING_OVER) if standing.role is Role.LEADER else standing


def is_held_by(holder: str, identity: str) -> bool:
    return bool(identity) and host_of(holder) == identity


def host_of(holder: str) -> str:
    """kube-scheduler's identity is `<host name>_<uuid>`; no host name contains `_`."""
    return holder.partition("_")[0]
