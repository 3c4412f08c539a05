"""Decides which process may write Bindings, by a Lease of the extenders' own.

The holder renews it while it binds. It begins no Binding later than `BEGIN_SECONDS` after it sent the renewal. The
Lease lasts until the last of these Bindings is carried out or can no longer be. So a process that takes the Lease
afterwards meets no Binding of another process. Clocks of two hosts are not compared: a Lease ends its duration after
its renewal was seen.
"""

import math
from dataclasses import dataclass, replace

from proto.kubernetes.objects import Lease
from scheduler_ext.settings import SLACK_SECONDS

BEGIN_SECONDS = 5.0
RENEW_SECONDS = 2.0
"""A Binding that begins later than this after the last renewal triggers the next one."""
LONGEST_LEASE_SECONDS = 300
"""The longest wait for a Lease, whatever the Lease states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The Lease as last seen. `version` is empty if there is none. Times are in monotonic seconds."""

    holder: str = ""
    renewed: str = ""
    version: str = ""
    ends_at: float = 0.0


def lease_seconds(write_seconds: float) -> int:
    """Returns seconds from the last renewal to the end of the last Binding.

    The process gives a Binding up after `write_seconds`. The API server may have received it just then, and gives it up
    after the same time again.
    """
    return math.ceil(BEGIN_SECONDS + 2 * write_seconds + SLACK_SECONDS)


def after_seen(turn: Turn, lease: Lease | None, now: float) -> Turn:
    """The Lease was seen; None if it does not exist. A deleted Lease ends as it would have."""
    if lease is None:
        return replace(turn, version="")
    spec, version = lease.spec, lease.metadata.resource_version
    holder, renewed = spec.holder_identity or "", spec.renew_time or ""
    if (holder, renewed) == (turn.holder, turn.renewed):
        return replace(turn, version=version)
    lasts = min(spec.lease_duration_seconds or LONGEST_LEASE_SECONDS, LONGEST_LEASE_SECONDS)
    return Turn(holder=holder, renewed=renewed, version=version, ends_at=now + lasts)


def is_anothers(turn: Turn, process: str) -> bool:
    """Returns whether another process may have held it since this one did. A deleted Lease names no holder."""
    return not turn.version or turn.holder != process


def free_at(turn: Turn, process: str) -> float:
    """Returns the time from which this process may take it, in monotonic seconds; 0 for at any time."""
    return 0.0 if turn.holder in ("", process) else turn.ends_at
