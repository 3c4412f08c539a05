"""A rate limit: a number of turns a second, and a few at once after a pause."""

from math import inf


class Pace:
    """The generic cell rate algorithm (ITU-T I.371): a turn waits while earlier ones are ahead of the rate."""

    def __init__(self, *, per_second: float, burst: int) -> None:
        """Creates a limit. Both values are above 0; `burst` is how many turns may be taken at once."""
        self._interval_seconds = 1 / per_second
        self._ahead_seconds = (burst - 1) * self._interval_seconds
        self._next = -inf

    def take(self, now: float) -> float:
        """Takes the next turn and returns the seconds until it. `now` is monotonic seconds."""
        turn = max(self._next, now)
        self._next = turn + self._interval_seconds
        return max(turn - self._ahead_seconds - now, 0.0)
