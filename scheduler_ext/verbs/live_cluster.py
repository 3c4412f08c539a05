"""Runs the cluster state: gives each event its time and performs each effect at once."""

import asyncio
from collections.abc import Callable
from weakref import WeakSet

from proto.kubernetes.objects import Notice, ObjectReference
from scheduler_ext.cluster.events import Changed, ClusterEvent, Effect, Freed, Nominated, RecordEvent, Wished
from scheduler_ext.cluster.pod_index import PodName
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.verbs.nominated_rooms import keep_room_for


class LiveCluster:
    """The state in use. `record_event` gets the notices for nodes and pods."""

    def __init__(
        self, state: Cluster, monotonic: Callable[[], float], record_event: Callable[[ObjectReference, Notice], None]
    ) -> None:
        self.state = state
        self.monotonic = monotonic
        self.freed = asyncio.Event()
        """The event is set when there may be room for more pods. Its one reader clears it."""
        self.wished = asyncio.Event()
        """The event is set when a pod waits for other GPU memory. Its one reader clears it."""
        self.record_event = record_event
        self._waiting: dict[str | PodName, WeakSet[asyncio.Event]] = {}
        """Tasks that wait for a change, by the node's or pod's name."""

    def apply(self, event: ClusterEvent) -> None:
        now = self.monotonic()
        self.state.step(event, now, lambda effect: self._perform(effect, now))

    def next_change(self, *names: str | PodName | None) -> asyncio.Event:
        """Returns an event that is set at the first change of one of these nodes and pods after this call."""
        event = asyncio.Event()
        for name in names:
            if name is not None:
                self._waiting.setdefault(name, WeakSet()).add(event)
        return event

    def _perform(self, effect: Effect, now: float) -> None:
        match effect:
            case Changed(name):
                for each in [*self._waiting] if name is None else [name]:
                    for event in self._waiting.pop(each, ()):
                        event.set()
            case Freed():
                self.freed.set()
            case Wished():
                self.wished.set()
            case RecordEvent(subject, notice):
                self.record_event(subject, notice)
            case Nominated(pod, node):
                keep_room_for(self.state, pod, node, now)
