"""When a serving certificate is to be replaced."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

LIFETIME = timedelta(days=365)

CLOCK_SKEW = timedelta(hours=1)
"""A new certificate is valid since then already, for peers whose clocks are behind."""


class Step(StrEnum):
    CREATE = "create"
    """There is none."""
    RENEW = "renew"
    """There is one, but not for much longer, or of no use."""
    KEEP = "keep"


@dataclass(frozen=True, slots=True, kw_only=True)
class Validity:
    """What a certificate says of itself."""

    not_before: datetime
    not_after: datetime
    names: frozenset[str]
    """DNS names and IP addresses it may serve."""

    def renewed_at(self) -> datetime:
        """After two thirds of its life: a third is left to get over whatever stands in the way."""
        return self.not_before + (self.not_after - self.not_before) * 2 / 3


def due(exists: bool, current: Validity | None, names: frozenset[str], now: datetime) -> Step:
    """`current` is None when what is stored cannot be used; `names` are those it must serve."""
    if not exists:
        return Step.CREATE
    if current is None or not names <= current.names or not current.not_before <= now < current.renewed_at():
        return Step.RENEW
    return Step.KEEP


def names_to_serve(current: Validity | None, names: frozenset[str], now: datetime) -> frozenset[str]:
    """Of a new certificate: ours, and those of one that is still good, else two versions of us would take turns."""
    is_good = current is not None and current.not_before <= now < current.renewed_at()
    return names | current.names if current is not None and is_good else names
