"""The last word about each pod, so that somebody can ask later where it went and why."""

from collections import OrderedDict
from dataclasses import dataclass

MOST_PODS = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """`at` is Unix time in seconds, `said` the words of the pod's event."""

    at: float
    said: str


class Journal:
    """By pod UID; who was written about longest ago is forgotten first."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, Entry] = OrderedDict()

    def write(self, uid: str, entry: Entry) -> None:
        self._entries.pop(uid, None)
        self._entries[uid] = entry
        if len(self._entries) > MOST_PODS:
            self._entries.popitem(last=False)

    def find(self, uid: str) -> Entry | None:
        return self._entries.get(uid)
