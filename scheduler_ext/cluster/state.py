"""The one state of the extender: nodes, pods, quotas, budgets, reservations, waiting and nominated pods.

Events enter with their time, and effects leave for the shell to perform. All readers use this state, and only events
change it. Rankings of nodes (`decide.index`) are not state: they follow the ledger and can be computed again. The
extender's own decisions are here, and have no effect outside; what the API server shows is in `watched`.
"""

from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any

from msgspec.structs import replace

from proto.kubernetes.objects import Pod
from scheduler_ext.cluster import events, watched
from scheduler_ext.cluster.budgets import Budgets
from scheduler_ext.cluster.closed_nodes import KubeletRefusals
from scheduler_ext.cluster.events import ClusterEvent, Effect, OwnEvent
from scheduler_ext.cluster.gangs import Gang, Gangs
from scheduler_ext.cluster.groups import pending_of
from scheduler_ext.cluster.history import Histories, LogKind, PodLog
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.pod_index import PodIndex, PodName, pod_name
from scheduler_ext.cluster.records import Growth, RecordState
from scheduler_ext.cluster.snapshot import Snapshot
from scheduler_ext.cluster.waiting_pods import Nominations, PodQueue, Wishes
from scheduler_ext.requests import RequestSettings, pod_key


def _filter_began(cluster: "Cluster", event: events.FilterBegan, now: float) -> None:
    cluster.ledger.groups.filter_begins(event.pod, event.offered, event.needed)
    cluster.history.add(pod_key(event.pod), now, "kube-scheduler asked about it")


def _decided(cluster: "Cluster", event: events.Decided, now: float) -> None:
    pod, node, shares = event.pod, event.node, event.shares
    pending = pending_of(pod, event.request)
    pending = replace(pending, ahead=True) if event.ahead else pending
    cluster.ledger.reserve(event.uid, pod, node, shares, event.until, others=event.others, pending=pending)
    if event.ahead:
        return
    cluster.queue.remove(event.uid)
    cluster.history.add(event.uid, now, f"node {node} was decided")
    cluster.log.add(now, pod_name(pod), LogKind.DECIDED, node, shares)


def _undone(cluster: "Cluster", event: events.GroupUndone, _: float) -> None:
    records = cluster.ledger.records
    records.drop(*map(records.reserved, event.uids))
    records.put(*event.before)


def _refused(cluster: "Cluster", event: events.PodRefused, now: float) -> None:
    cluster.ledger.groups.refused(event.pod, now)
    if event.request is not None:
        cluster.queue.refused(event.request, event.pod.spec.priority or 0, now)
    cluster.history.add(pod_key(event.pod), now, "no node fitted")
    cluster.log.add(now, pod_name(event.pod), LogKind.REFUSED)


def _node_chosen(cluster: "Cluster", event: events.NodeChosen, now: float) -> None:
    if cluster.ledger.choose(event.uid, event.node) is not None:
        cluster.ledger.groups.bind_begins(event.uid, event.until)
    cluster.history.add_known(event.uid, now, f"kube-scheduler chose node {event.node}")


def _bind_began(cluster: "Cluster", event: events.BindBegan, now: float) -> None:
    cluster.ledger.groups.bind_begins(event.uid, event.until)
    cluster.history.add_known(event.uid, now, f"its GPUs stay reserved for {event.until - now:.0f} s")


def _dropped(cluster: "Cluster", event: events.Dropped, now: float) -> None:
    kept = cluster.ledger.groups.bind_failed(event.uid, now)
    cluster.history.add_known(
        event.uid, now, "its reservation stays for its group" if kept else "its reservation was dropped"
    )
    if kept:
        return
    name = cluster.pods.names().get(event.uid)
    if name is not None:
        cluster.log.add(now, name, LogKind.DROPPED)


def _binding_sent(cluster: "Cluster", event: events.BindingSent, _: float) -> None:
    record = cluster.ledger.records.reserved(event.uid)
    if record is not None:
        cluster.ledger.records.put(replace(record, state=RecordState.SENT, sent_by=event.attempt))


def _requeued(cluster: "Cluster", event: events.Requeued, now: float) -> None:
    cluster.queue.requeued(event.uid, now)
    cluster.history.add_known(event.uid, now, "kube-scheduler was made to look again")


def _room_wanted(cluster: "Cluster", event: events.RoomWanted, now: float) -> None:
    request, node = event.nomination.request, event.nomination.node
    cluster.ledger.records.drop(cluster.ledger.records.kept(request.uid))
    cluster.nominations.put(event.nomination)
    cluster.history.add_known(request.uid, now, f"it was nominated for node {node}")
    cluster.log.add(now, PodName(namespace=request.namespace, name=request.pod), LogKind.NOMINATED, node)


def _rooms_given_up(cluster: "Cluster", event: events.RoomsGivenUp, _: float) -> None:
    cluster.ledger.records.drop(*map(cluster.ledger.records.kept, event.uids))


def _backfill_allowed(cluster: "Cluster", event: events.BackfillAllowed, _: float) -> None:
    cluster.ledger.set_asides.backfill_until, cluster.ledger.set_asides.evicts = event.backfill_until, event.evicts


def _growth_began(cluster: "Cluster", event: events.GrowthBegan, _: float) -> None:
    records = cluster.ledger.records
    record = records.bound(pod_key(event.pod))
    if record is not None:
        records.put(replace(record, growth=Growth(counts=event.counts, pod=event.pod)))
        cluster.ledger.apply_pod(event.pod)


def _growth_sent(cluster: "Cluster", event: events.GrowthSent, _: float) -> None:
    records = cluster.ledger.records
    record = records.bound(event.uid)
    if record is not None and record.growth is not None:
        left = replace(record.growth, from_version=event.version) if event.version else None
        records.put(replace(record, growth=left))
        cluster.ledger.apply_pod(record.growth.pod)


class Cluster:
    """The parts of the state, and the events that change them. Read them freely: only events change them."""

    def __init__(self, requests: RequestSettings | None = None) -> None:
        self.requests = requests or RequestSettings()
        self.ledger: Ledger = Ledger(self.requests)
        self.pods = PodIndex(self.requests.names)
        self.gangs: Gangs = Gangs()
        self.budgets: Budgets = Budgets()
        self.nominations = Nominations()
        self.queue = PodQueue()
        self.wishes = Wishes()
        self.refusals = KubeletRefusals()
        self.history = Histories()
        self.log = PodLog()
        self._now = -inf

    def step(self, event: ClusterEvent, now: float, perform: Callable[[Effect], None]) -> None:
        """Applies any event. Each of its effects goes to `perform`, so that none can be lost. What ends by `now`, in
        monotonic seconds, ends before the event.
        """
        if isinstance(event, OwnEvent):
            self.apply(event, now)
            return
        self._pass_time(now)
        for effect in watched.HANDLERS[type(event)](self, event, now) or ():
            perform(effect)

    def apply(self, event: OwnEvent, now: float) -> None:
        """Applies an event of this process. Its handler returns nothing, so it has no effect that could be lost."""
        self._pass_time(now)
        _OWN[type(event)](self, event, now)

    def _pass_time(self, now: float) -> None:
        if now != self._now:
            self._now = now
            self.refusals.now = now
            self.ledger.expire(now)

    def waiting_pods(self) -> Mapping[str, Pod]:
        """Returns the pods, by UID, that request GPUs, and for which no node is decided."""
        reserved = self.ledger.records.reserved
        return {uid: pod for uid, pod in self.pods.pending().items() if reserved(uid) is None}

    def closed_to(self, pod: Pod) -> Mapping[str, str]:
        """Returns the nodes that are set aside for others or whose kubelets refused such a pod, with the reason."""
        return {**self.ledger.set_asides.closed_to(pod, self.budgets), **self.refusals.closed_to(pod)}

    def snapshot_for(self, pod: Pod) -> Snapshot:
        """Returns the cluster for a decision about this pod; nodes that are closed to it offer nothing."""
        return self.ledger.snapshot_for(pod).without(self.refusals.closed_to(pod))

    def gang_of(self, pod: Pod) -> Gang | None:
        """Returns the group of the pod, if its pods start together and their number is known."""
        return self.gangs.of(pod, self.pods.pending())

    def end_nominations(self, uids: Iterable[str]) -> None:
        self.ledger.records.drop(*map(self.ledger.records.kept, filter(self.nominations.end, uids)))


_OWN: Mapping[type[OwnEvent], Callable[["Cluster", Any, float], None]] = {
    events.FilterBegan: _filter_began,
    events.Decided: _decided,
    events.GroupUndone: _undone,
    events.PodRefused: _refused,
    events.Explained: lambda cluster, event, now: cluster.history.set_decided(event.uid, now, event.words),
    events.NodeChosen: _node_chosen,
    events.BindBegan: _bind_began,
    events.LockHeld: lambda cluster, event, now: cluster.pods.hold(event.node, event.lock, event.until, now),
    events.Dropped: _dropped,
    events.BindingSent: _binding_sent,
    events.BindStep: lambda cluster, event, now: cluster.history.add_known(event.uid, now, event.words),
    events.Requeued: _requeued,
    events.WaitEnded: lambda cluster, event, _: cluster.queue.remove(event.uid),
    events.GrowthBegan: _growth_began,
    events.GrowthSent: _growth_sent,
    events.RoomWanted: _room_wanted,
    events.RoomKept: lambda cluster, event, _: cluster.ledger.records.put(event.room),
    events.BackfillAllowed: _backfill_allowed,
    events.RoomsGivenUp: _rooms_given_up,
    events.NominationsEnded: lambda cluster, event, _: cluster.end_nominations(event.uids),
    events.LeadershipGained: lambda cluster, *_: cluster.ledger.records.drop(
        *cluster.ledger.records.of(RecordState.RESERVED)
    ),
    events.TimePassed: lambda *_: None,
}
