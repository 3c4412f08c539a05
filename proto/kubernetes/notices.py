"""Notices: what is to be written as an event."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One notice for the events of a pod or node."""

    reason: str
    message: str
    warning: bool = True
    distinct: bool = False
    """True if another message counts as a new event, even right after one with the same reason."""
