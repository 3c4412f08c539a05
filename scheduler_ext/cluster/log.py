"""The last things that happened to pods, for people who follow them."""

from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from itertools import takewhile
from typing import NamedTuple

from proto.devices import DeviceUUID, PodShares
from scheduler_ext.cluster.pod_index import PodName

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
    """Oldest first."""

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
