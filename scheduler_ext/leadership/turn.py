"""Whose turn it is to write Bindings, by a Lease of the extenders' own.

Its holder renews it while it binds: it begins no Binding later than `BEGIN_SECONDS` after it asked for the renewal. The
Lease lasts until the last of them has been carried out or never will be, so who takes it after that has no Binding of
another process to fear. The clocks of two hosts are not compared: a Lease ends so long after it was seen renewed.
"""

import math
from dataclasses import dataclass, replace

from proto.kubernetes.objects import Lease
from scheduler_ext.settings import SLACK_SECONDS

BEGIN_SECONDS = 5.0
RENEW_SECONDS = 2.0
"""A Binding that begins later than this after the last renewal has the next one written."""
LONGEST_LEASE_SECONDS = 300
"""Whatever a Lease says: nobody waits longer for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The Lease as it was last seen; `version` is empty where there is none. Times are monotonic seconds."""

    holder: str = ""
    renewed: str = ""
    version: str = ""
    ends_at: float = 0.0


def lease_seconds(write_seconds: float) -> int:
    """From the last renewal to the end of the last Binding.

    The process gives a Binding up after `write_seconds`; the API server may have got it just then, and gives it up
    after the same time again.
    """
    return math.ceil(BEGIN_SECONDS + 2 * write_seconds + SLACK_SECONDS)


def after_seen(turn: Turn, lease: Lease | None, now: float) -> Turn:
    """The Lease was seen; None when there is none. One that is gone ends as it would have."""
    if lease is None:
        return replace(turn, version="")
    spec, version = lease.spec, lease.metadata.resource_version
    holder, renewed = spec.holder_identity or "", spec.renew_time or ""
    if (holder, renewed) == (turn.holder, turn.renewed):
        return replace(turn, version=version)
    lasts = min(spec.lease_duration_seconds or LONGEST_LEASE_SECONDS, LONGEST_LEASE_SECONDS)
    return Turn(holder=holder, renewed=renewed, version=version, ends_at=now + lasts)


def free_at(turn: Turn, process: str) -> float:
    """When this process may take it, in monotonic seconds; 0 if at any time."""
    return 0.0 if turn.holder in ("", process) else turn.ends_at
