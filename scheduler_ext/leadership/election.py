"""Who leads, by the Lease that the kube-scheduler beside us holds: one step for each thing that happens.

Of the Lease the extender writes nothing but a mark: which process may have Bindings under way. Who takes over waits
until the mark is gone, or until whatever that process sent has been carried out or never will be. Its clock is not
compared with ours: a holder leads until the Lease's duration has passed since we saw it renewed.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from proto.annotations.keys import LEASE_BINDING
from proto.kubernetes.objects import Lease
from scheduler_ext.settings import SLACK_SECONDS

DEFAULT_LEASE_SECONDS = 15
"""Of a Lease that does not say."""


class Role(StrEnum):
    FOLLOWER = "follower"
    TAKING_OVER = "taking over"
    """Holds the Lease, but has not yet seen everything that the leader before may have decided."""
    LEADER = "leader"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """`since` and `expires_at` are in monotonic seconds; `renewed` and `version` are the Lease's own texts."""

    role: Role = Role.FOLLOWER
    holder: str = ""
    renewed: str = ""
    expires_at: float = 0.0
    since: float = 0.0
    """When the role began."""
    lease_seconds: float = 0.0
    marked: str = ""
    """The process that may have Bindings under way; empty once all that it wrote was answered."""
    version: str = ""


def after_lease(standing: Standing, lease: Lease | None, identity: str, now: float) -> Standing:
    """The Lease was seen; None when there is none."""
    standing = after_time(standing, now)
    if lease is None:
        return Standing(marked=standing.marked)
    holder, renewed = lease.spec.holder_identity or "", lease.spec.renew_time or ""
    marked, version = lease.metadata.annotations.get(LEASE_BINDING, ""), lease.metadata.resource_version
    standing = replace(standing, marked=marked, version=version)
    if (holder, renewed) == (standing.holder, standing.renewed):
        return standing
    seconds = float(lease.spec.lease_duration_seconds or DEFAULT_LEASE_SECONDS)
    seen = replace(standing, holder=holder, renewed=renewed, expires_at=now + seconds, lease_seconds=seconds)
    if not is_held_by(holder, identity):
        return replace(seen, role=Role.FOLLOWER)
    # Another holder in between may have decided, though it had our host's name.
    kept = standing.role is not Role.FOLLOWER and holder == standing.holder
    return seen if kept else replace(seen, role=Role.TAKING_OVER, since=now)


def after_time(standing: Standing, now: float) -> Standing:
    """Whoever did not renew in time follows."""
    return replace(standing, role=Role.FOLLOWER) if now >= standing.expires_at else standing


def after_catching_up(standing: Standing) -> Standing:
    """Everything that was decided before the take-over has been seen."""
    return replace(standing, role=Role.LEADER) if standing.role is Role.TAKING_OVER else standing


def others_may_write_until(standing: Standing, process: str, write_seconds: float) -> float:
    """When no Binding of the process before can be carried out any more, in monotonic seconds; 0 if none can be now.

    It begins none once it has not seen the Lease renewed in time. What it has begun it gives up after `write_seconds`,
    and so does the API server, from when it got the request. A process before on this very host is over.
    """
    if standing.marked in ("", process):
        return 0.0
    if is_held_by(standing.marked, process.partition("_")[0]):
        return standing.since + write_seconds + SLACK_SECONDS
    return standing.since + standing.lease_seconds + 2 * write_seconds + SLACK_SECONDS


def is_held_by(holder: str, identity: str) -> bool:
    """kube-scheduler's identity is `<host name>_<uuid>`; no host name contains `_`."""
    return bool(identity) and holder.partition("_")[0] == identity
