"""What was done for a decision, counted, so that it can be limited: a busy machine changes no count."""

from dataclasses import dataclass


@dataclass(slots=True)
class Effort:
    """`made` grows by 1 for about two microseconds of work."""

    made: int = 0
