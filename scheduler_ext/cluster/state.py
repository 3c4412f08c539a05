"""The one state of the extender: nodes, pods, quotas, budgets, reservations, waiting and nominated pods.

Events enter with their time, and effects leave for the shell to perform. All readers use this state, and only events
change it. Rankings of nodes (`decide.index`) are not state: they follow the ledger and can be computed again. The
extender's own decisions are here, and have no effect outside; what the API server shows is in `watched`.
"""

from collections.abc import Callable, Mapping
from math import inf
from typing import Any

from msgspec.structs import replace

from scheduler_ext.cluster import events, watched
from scheduler_ext.cluster.events import ClusterEvent, Effect, OwnEvent
from scheduler_ext.cluster.groups import pending_of
from scheduler_ext.cluster.history import LogKind
from scheduler_ext.cluster.parts import ClusterParts
from scheduler_ext.cluster.pod_index import PodName, pod_name
from scheduler_ext.cluster.records import RecordState
from scheduler_ext.requests import RequestSettings, pod_key


def _asked(parts: ClusterParts, event: events.Asked, now: float) -> None:
    parts.ledger.groups.asked(event.pod, event.offered, event.needed)
    parts.history.add(pod_key(event.pod), now, "kube-scheduler asked about it")


def _decided(parts: ClusterParts, event: events.Decided, now: float) -> None:
    pod, node, shares = event.pod, event.node, event.shares
    pending = pending_of(pod, event.request)
    pending = replace(pending, ahead=True) if event.ahead else pending
    parts.ledger.reserve(event.uid, pod, node, shares, event.until, others=event.others, pending=pending)
    if event.ahead:
        return
    parts.queue.settled(event.uid)
    parts.history.add(event.uid, now, f"node {node} was decided")
    parts.log.add(now, pod_name(pod), LogKind.DECIDED, node, shares)


def _undone(parts: ClusterParts, event: events.GroupUndone, _: float) -> None:
    for uid in event.uids:
        parts.ledger.records.release(uid)
    for record in event.before:
        parts.ledger.records.put(record)


def _refused(parts: ClusterParts, event: events.PodRefused, now: float) -> None:
    parts.ledger.groups.refused(event.pod, now)
    if event.request is not None:
        parts.queue.refused(event.request, event.pod.spec.priority or 0, now)
    parts.history.add(pod_key(event.pod), now, "no node fitted")
    parts.log.add(now, pod_name(event.pod), LogKind.REFUSED)


def _node_chosen(parts: ClusterParts, event: events.NodeChosen, now: float) -> None:
    if parts.ledger.choose(event.uid, event.node) is not None:
        parts.ledger.groups.bind_begins(event.uid, event.until)
    parts.history.go_on(event.uid, now, f"kube-scheduler chose node {event.node}")


def _bind_began(parts: ClusterParts, event: events.BindBegan, now: float) -> None:
    parts.ledger.groups.bind_begins(event.uid, event.until)
    parts.history.go_on(event.uid, now, f"its GPUs stay reserved for {event.until - now:.0f} s")


def _dropped(parts: ClusterParts, event: events.Dropped, now: float) -> None:
    kept = parts.ledger.groups.bind_failed(event.uid, now)
    parts.history.go_on(
        event.uid, now, "its reservation stays for its group" if kept else "its reservation was dropped"
    )
    if kept:
        return
    name = parts.pods.names().get(event.uid)
    if name is not None:
        parts.log.add(now, name, LogKind.DROPPED)


def _requeued(parts: ClusterParts, event: events.Requeued, now: float) -> None:
    parts.queue.requeued(event.uid, now)
    parts.history.go_on(event.uid, now, "kube-scheduler was made to look again")


def _room_wanted(parts: ClusterParts, event: events.RoomWanted, now: float) -> None:
    request, node = event.nomination.request, event.nomination.node
    parts.ledger.records.give_up(request.uid)
    parts.nominations.put(event.nomination)
    parts.history.go_on(request.uid, now, f"it was nominated for node {node}")
    parts.log.add(now, PodName(namespace=request.namespace, name=request.pod), LogKind.NOMINATED, node)


def _room_shortened(parts: ClusterParts, event: events.RoomShortened, _: float) -> None:
    room = parts.ledger.records.kept(event.uid)
    if room is not None and event.until < room.until:
        parts.ledger.records.put(replace(room, until=event.until))


def _set_asides_judged(parts: ClusterParts, event: events.SetAsidesJudged, _: float) -> None:
    parts.ledger.set_asides.filled_until, parts.ledger.set_asides.evicts = event.filled_until, event.evicts


def _rooms_given_up(parts: ClusterParts, event: events.RoomsGivenUp, _: float) -> None:
    for uid in event.uids:
        parts.ledger.records.give_up(uid)


def _growth_began(parts: ClusterParts, event: events.GrowthBegan, _: float) -> None:
    parts.ledger.growths.begin(event.pod, event.counts)
    parts.ledger.apply_pod(event.pod)


def _growth_sent(parts: ClusterParts, event: events.GrowthSent, _: float) -> None:
    growths, uid = parts.ledger.growths, event.uid
    if (pod := growths.written(uid, event.version) if event.version else growths.end(uid)) is not None:
        parts.ledger.apply_pod(pod)


def _leadership_gained(parts: ClusterParts, _: events.LeadershipGained, __: float) -> None:
    for record in parts.ledger.records.of(RecordState.RESERVED):
        parts.ledger.records.drop(record.uid)


_OWN: Mapping[type[OwnEvent], Callable[[ClusterParts, Any, float], None]] = {
    events.Asked: _asked,
    events.Decided: _decided,
    events.GroupUndone: _undone,
    events.PodRefused: _refused,
    events.Explained: lambda parts, event, now: parts.history.decide(event.uid, now, event.words),
    events.NodeChosen: _node_chosen,
    events.BindBegan: _bind_began,
    events.LockHeld: lambda parts, event, now: parts.pods.hold(event.node, event.lock, event.until, now),
    events.Dropped: _dropped,
    events.BindingSent: lambda parts, event, _: parts.ledger.records.send(event.uid, event.attempt),
    events.BindStep: lambda parts, event, now: parts.history.go_on(event.uid, now, event.words),
    events.Requeued: _requeued,
    events.WaitEnded: lambda parts, event, _: parts.queue.settled(event.uid),
    events.GrowthBegan: _growth_began,
    events.GrowthSent: _growth_sent,
    events.RoomWanted: _room_wanted,
    events.RoomKept: lambda parts, event, _: parts.ledger.records.put(event.room),
    events.RoomShortened: _room_shortened,
    events.SetAsidesJudged: _set_asides_judged,
    events.RoomsGivenUp: _rooms_given_up,
    events.NominationEnded: lambda parts, event, _: parts.end_nominations([event.uid]),
    events.LeadershipGained: _leadership_gained,
    events.LeadershipLost: lambda parts, *_: parts.end_nominations(parts.nominations.ours()),
    events.TimePassed: lambda *_: None,
}


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
        _OWN[type(event)](self, event, now)

    def _pass_time(self, now: float) -> None:
        if now != self._now:
            self._now = now
            self.refusals.now = now
            self.ledger.expire(now)
            self.queue.drop_forgotten(now)
