"""Decides when to replace a serving certificate."""

from dataclasses import dataclass
from datetime import datetime, timedelta

LIFETIME = timedelta(days=365)

CLOCK_SKEW = timedelta(hours=1)
"""The time by which a new certificate's validity begins earlier, for peers whose clocks are behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validity:
    """The statements of a certificate about itself."""

    not_before: datetime
    not_after: datetime
    names: frozenset[str]
    """DNS names and IP addresses that it may serve."""

    def renewed_at(self) -> datetime:
        """Returns the time when two thirds of its life have passed: one third is left to solve any problem."""
        return self.not_before + (self.not_after - self.not_before) * 2 / 3

    def is_good(self, now: datetime) -> bool:
        return self.not_before <= now < self.renewed_at()


def is_due(current: Validity | None, names: frozenset[str], now: datetime) -> bool:
    """Returns whether a new one is due. `current` is None if there is none that can be used. It must serve `names`."""
    return current is None or not names <= current.names or not current.is_good(now)


def names_to_serve(current: Validity | None, names: frozenset[str], now: datetime) -> frozenset[str]:
    """Names for a new certificate: ours, and those of a current one that is still valid. Otherwise two versions of the
    extender would replace each other's certificates in turn.
    """
    return names | current.names if current is not None and current.is_good(now) else names
