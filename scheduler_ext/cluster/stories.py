"""Records what happened to each pod: people can see later why it is where it is, and a failure shows what led to it."""

from collections import OrderedDict
from typing import NamedTuple

MOST_PODS = 5_000
MOST_STEPS = 16
"""The most steps kept of each pod: its last ones."""


class Step(NamedTuple):
    """`at` is in monotonic seconds."""

    at: float
    what: str


class Story(NamedTuple):
    """`steps` are the last ones, oldest first. `decided` is the last decision, in the words of the pod's event."""

    steps: tuple[Step, ...] = ()
    decided: Step | None = None


class Stories:
    """Stories by pod UID. The pod with the oldest last step is forgotten first."""

    def __init__(self) -> None:
        self._steps: OrderedDict[str, tuple[Step, ...]] = OrderedDict()
        self._decided: dict[str, Step] = {}

    def tell(self, uid: str, now: float, what: str) -> None:
        """Adds a step to the story of a pod that requests GPUs; the story begins here if it has none."""
        self._steps[uid] = (*self._steps.get(uid, ())[1 - MOST_STEPS :], Step(now, what))
        self._steps.move_to_end(uid)
        if len(self._steps) > MOST_PODS:
            oldest, _ = self._steps.popitem(last=False)
            self._decided.pop(oldest, None)

    def go_on(self, uid: str, now: float, what: str) -> None:
        """Adds a step unless the pod has no story: it requests no GPU, or is long forgotten."""
        if uid in self._steps:
            self.tell(uid, now, what)

    def decide(self, uid: str, now: float, words: str) -> None:
        """Records the last decision about the pod, if it has a story."""
        if uid in self._steps:
            self._decided[uid] = Step(now, words)

    def of(self, uid: str) -> Story:
        return Story(self._steps.get(uid, ()), self._decided.get(uid))

    def line(self, uid: str, now: float) -> str:
        """Returns the story as one line for the log."""
        steps = [f"{max(now - at, 0):.1f} s ago {what}" for at, what in self._steps.get(uid, ())]
        return ", ".join(steps) or "nothing is remembered"
