"""What happened to each pod, so that people can ask later where it went and why, and a failure tells what led to it."""

from collections import OrderedDict, deque
from typing import NamedTuple

MOST_PODS = 5_000
MOST_STEPS = 16
"""The last of each pod."""


class Step(NamedTuple):
    """`at` is in monotonic seconds."""

    at: float
    what: str


class Story(NamedTuple):
    """`steps` are the last ones, the oldest first; `decided` is the last decision, in the words of the pod's event."""

    steps: tuple[Step, ...] = ()
    decided: Step | None = None


class Stories:
    """By pod UID; the pod to which nothing has happened for longest is forgotten first."""

    def __init__(self) -> None:
        self._steps: OrderedDict[str, deque[Step]] = OrderedDict()
        self._decided: dict[str, Step] = {}

    def tell(self, uid: str, now: float, what: str) -> None:
        steps = self._steps.get(uid)
        if steps is None:
            steps = self._steps[uid] = deque(maxlen=MOST_STEPS)
            if len(self._steps) > MOST_PODS:
                oldest, _ = self._steps.popitem(last=False)
                self._decided.pop(oldest, None)
        else:
            self._steps.move_to_end(uid)
        steps.append(Step(now, what))

    def decide(self, uid: str, now: float, words: str) -> None:
        """For a pod that something happened to."""
        if uid in self._steps:
            self._decided[uid] = Step(now, words)

    def of(self, uid: str) -> Story:
        return Story(tuple(self._steps.get(uid, ())), self._decided.get(uid))

    def line(self, uid: str, now: float) -> str:
        """For the log."""
        return ", ".join(f"{max(now - at, 0):.1f} s ago {what}" for at, what in self._steps.get(uid, ()))
