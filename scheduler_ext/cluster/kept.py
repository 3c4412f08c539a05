"""Room that is kept on a node for a pod for which others are evicted."""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from scheduler_ext.cluster.holdings import Holding


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRoom:
    """Room that a pod of this priority will get on a node, though others may still hold it. `until` is in monotonic
    seconds.
    """

    holding: Holding
    priority: int
    until: float

    @property
    def node(self) -> str:
        return self.holding.node


@dataclass(slots=True)
class KeptRooms:
    """Kept rooms by pod, at most one for each."""

    _rooms: dict[str, KeptRoom] = field(default_factory=dict)
    _first_end: float = inf

    def __len__(self) -> int:
        return len(self._rooms)

    def get(self, uid: str) -> KeptRoom | None:
        return self._rooms.get(uid)

    def uids(self) -> Sequence[str]:
        return tuple(self._rooms)

    def put(self, uid: str, room: KeptRoom) -> None:
        self._rooms[uid] = room
        self._first_end = min(self._first_end, room.until)

    def drop(self, uid: str) -> KeptRoom | None:
        return self._rooms.pop(uid, None)

    def shorten(self, uid: str, until: float) -> None:
        """Ends the room at `until` in monotonic seconds, unless it ends before."""
        room = self._rooms.get(uid)
        if room is not None and until < room.until:
            self.put(uid, replace(room, until=until))

    def on(self, node: str, *, without: Container[str] = ()) -> dict[str, KeptRoom]:
        """Returns the rooms kept on the node by pod, except for pods in `without`."""
        return {uid: room for uid, room in self._rooms.items() if room.node == node and uid not in without}

    def below(self, priority: int) -> dict[str, list[str]]:
        """Returns for each node the pods of lower priority for which room is kept."""
        found: dict[str, list[str]] = {}
        for uid, room in self._rooms.items():
            if room.priority < priority:
                found.setdefault(room.node, []).append(uid)
        return found

    def ended(self, now: float) -> Sequence[str]:
        """Returns the pods whose kept room has ended."""
        if now < self._first_end:
            return ()
        over = [uid for uid, room in self._rooms.items() if room.until <= now]
        self._first_end = min((room.until for uid, room in self._rooms.items() if uid not in over), default=inf)
        return over
