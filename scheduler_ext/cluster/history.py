"""Records what happened to pods: people can see later why one is where it is, and a failure shows what led to it."""

from collections import OrderedDict, deque
from collections.abc import Sequence
from enum import StrEnum
from itertools import takewhile
from typing import NamedTuple

from proto.devices import DeviceUUID, PodShares
from scheduler_ext.cluster.pod_index import PodName

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


_NO_HISTORY = PodHistory()


class Histories:
    """Histories by pod UID. The pod with the oldest last step is forgotten first."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, PodHistory] = OrderedDict()

    def add(self, uid: str, now: float, what: str) -> None:
        """Adds a step to the history of a pod that requests GPUs; the history begins here if it has none."""
        known = self._known.pop(uid, _NO_HISTORY)
        self._known[uid] = PodHistory((*known.steps[1 - MOST_STEPS :], HistoryStep(now, what)), known.decided)
        if len(self._known) > MOST_PODS:
            self._known.popitem(last=False)

    def add_known(self, uid: str, now: float, what: str) -> None:
        """Adds a step unless the pod has no history: it requests no GPU, or is long forgotten."""
        if uid in self._known:
            self.add(uid, now, what)

    def set_decided(self, uid: str, now: float, words: str) -> None:
        """Records the last decision about the pod, if it has a history."""
        if uid in self._known:
            self._known[uid] = self._known[uid]._replace(decided=HistoryStep(now, words))

    def of(self, uid: str) -> PodHistory:
        return self._known.get(uid, _NO_HISTORY)

    def line(self, uid: str, now: float) -> str:
        """Returns the history as one line for the log."""
        steps = [f"{max(now - at, 0):.1f} s ago {what}" for at, what in self.of(uid).steps]
        return ", ".join(steps) or "nothing is remembered"


MOST_REMEMBERED = 256


class LogKind(StrEnum):
    DECIDED = "decided"
    REFUSED = "refused"
    BOUND = "bound"
    NOMINATED = "nominated"
    """Others are evicted for it, and room is kept."""
    DROPPED = "dropped"
    """Its reservation was given up."""
    DELETED = "deleted"


class LogEntry(NamedTuple):
    """`number` counts up without gaps. `at` is in monotonic seconds. `gpus` are those of a decision."""

    number: int
    at: float
    pod: PodName
    what: LogKind
    node: str = ""
    gpus: tuple[DeviceUUID, ...] = ()


class PodLog:
    """The last things that happened to pods, oldest first, for people who follow them."""

    def __init__(self) -> None:
        self._kept: deque[LogEntry] = deque(maxlen=MOST_REMEMBERED)
        self._number = 0

    def add(self, now: float, pod: PodName, what: LogKind, node: str = "", shares: PodShares = ()) -> None:
        self._number += 1
        gpus = tuple(dict.fromkeys(share.uuid for container in shares for share in container))
        self._kept.append(LogEntry(self._number, now, pod, what, node, gpus))

    def since(self, number: int) -> Sequence[LogEntry]:
        """Returns what is remembered of everything after that number, oldest first."""
        later = takewhile(lambda each: each.number > number, reversed(self._kept))
        return tuple(reversed(tuple(later)))
