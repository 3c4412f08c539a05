"""Records what happened to each pod: people can see later why it is where it is, and a failure shows what led to it."""

from collections import OrderedDict
from typing import NamedTuple

MOST_PODS = 5_000
MOST_STEPS = 16
"""The most steps kept of each pod: its last ones."""


class HistoryStep(NamedTuple):
    """`at` is in monotonic seconds."""

    at: float
    what: str


class PodHistory(NamedTuple):
    """`steps` are the last ones, oldest first. `decided` is the last decision, in the words of the pod's event."""

    steps: tuple[HistoryStep, ...] = ()
    decided: HistoryStep | None = None


class Histories:
    """Histories by pod UID. The pod with the oldest last step is forgotten first."""

    def __init__(self) -> None:
        self._steps: OrderedDict[str, tuple[HistoryStep, ...]] = OrderedDict()
        self._decided: dict[str, HistoryStep] = {}

    def add(self, uid: str, now: float, what: str) -> None:
        """Adds a step to the history of a pod that requests GPUs; the history begins here if it has none."""
        self._steps[uid] = (*self._steps.get(uid, ())[1 - MOST_STEPS :], HistoryStep(now, what))
        self._steps.move_to_end(uid)
        if len(self._steps) > MOST_PODS:
            oldest, _ = self._steps.popitem(last=False)
            self._decided.pop(oldest, None)

    def go_on(self, uid: str, now: float, what: str) -> None:
        """Adds a step unless the pod has no history: it requests no GPU, or is long forgotten."""
        if uid in self._steps:
            self.add(uid, now, what)

    def decide(self, uid: str, now: float, words: str) -> None:
        """Records the last decision about the pod, if it has a history."""
        if uid in self._steps:
            self._decided[uid] = HistoryStep(now, words)

    def of(self, uid: str) -> PodHistory:
        return PodHistory(self._steps.get(uid, ()), self._decided.get(uid))

    def line(self, uid: str, now: float) -> str:
        """Returns the history as one line for the log."""
        steps = [f"{max(now - at, 0):.1f} s ago {what}" for at, what in self._steps.get(uid, ())]
        return ", ".join(steps) or "nothing is remembered"
