"""What is worth an event, before it is one."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A line for the events of a pod or node."""

    reason: str
    message: str
    warning: bool = True
    distinct: bool = False
    """Whether another message is another matter, told even when one with this reason was told a moment ago."""
