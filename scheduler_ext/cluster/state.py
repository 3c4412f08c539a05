"""The one state of the extender: nodes, pods, quotas, budgets, reservations, waiting and nominated pods.

Events enter with their time, and effects leave for the shell to perform. All readers use this state, and only events
change it. Rankings of nodes (`decide.index`) are not state: they follow the ledger and can be computed again.
"""

from collections.abc import Callable
from math import inf

from scheduler_ext.cluster import decisions, watched
from scheduler_ext.cluster.events import ClusterEvent, Effect, OwnEvent
from scheduler_ext.cluster.parts import ClusterParts
from scheduler_ext.requests import RequestSettings


class Cluster(ClusterParts):
    """The parts together, and the events that change them."""

    def __init__(self, requests: RequestSettings | None = None) -> None:
        super().__init__(requests)
        self._now = -inf

    def step(self, event: ClusterEvent, now: float, perform: Callable[[Effect], None]) -> None:
        """Applies any event. Each of its effects goes to `perform`, so that none can be lost. What ends by `now`, in
        monotonic seconds, ends before the event.
        """
        if isinstance(event, OwnEvent):
            self.record(event, now)
            return
        self._pass_time(now)
        for effect in watched.HANDLERS[type(event)](self, event, now) or ():
            perform(effect)

    def record(self, event: OwnEvent, now: float) -> None:
        """Applies an event of this process. Its handler returns nothing, so it has no effect that could be lost."""
        self._pass_time(now)
        decisions.HANDLERS[type(event)](self, event, now)

    def _pass_time(self, now: float) -> None:
        if now != self._now:
            self._now = now
            self.ledger.expire(now)
            self.queue.drop_forgotten(now)
