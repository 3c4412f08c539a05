"""The one state of the extender: nodes, pods, quotas, budgets, reservations, waiting and nominated pods.

Events enter with their time, and effects leave for the shell to perform. All readers use this state, and only `apply`
writes it. Rankings of nodes (`decide.index`) are not state: they follow the ledger and can be computed again.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import inf
from typing import Any

from proto.kubernetes.notices import Notice
from proto.kubernetes.objects import Node, ObjectReference, Pod, PodDisruptionBudget, ResourceQuota, version_number
from scheduler_ext.cluster import events
from scheduler_ext.cluster.budgets import Budgets
from scheduler_ext.cluster.events import Changed, Effect, Event, Freed, Nominated, Tell
from scheduler_ext.cluster.facts import Facts, PodName, pod_name, pod_reference
from scheduler_ext.cluster.holdings import outlives
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.nominations import Nominations
from scheduler_ext.cluster.orphans import ORPHAN_SECONDS
from scheduler_ext.cluster.recent import Recent, What
from scheduler_ext.cluster.stories import Stories
from scheduler_ext.cluster.waiting import WaitingPods
from scheduler_ext.requests import RequestSettings, pod_key

_FREED = Freed()
_EVERYTHING_CHANGED = Changed()
_NOTHING: Sequence[Effect] = ()

Handler = Callable[[Any, float], Sequence[Effect] | None]


class Cluster:
    """The cluster's parts, each with its own file. Read them freely: only `apply` changes them."""

    def __init__(self, requests: RequestSettings | None = None) -> None:
        self.requests = requests or RequestSettings()
        self.ledger = Ledger(self.requests)
        self.facts = Facts(self.requests.names)
        self.budgets = Budgets()
        self.nominations = Nominations()
        self.waiting = WaitingPods()
        self.stories = Stories()
        self.recent = Recent()
        self._now = -inf
        self._unreadable_nodes = _Complaints("UnreadableRegistration")
        self._unreadable_pods = _Complaints("UnreadableAllocation")
        self._handlers: Mapping[type[Event], Handler] = self._own_events() | self._watched()

    def apply(self, event: Event, now: float) -> Sequence[Effect]:
        """Applies the event. What ends by `now`, in monotonic seconds, ends before it.

        Decisions of this process have no effect outside. What the API server shows has, and so do the evictions
        proposed to kube-scheduler.
        """
        if now != self._now:
            self._now = now
            self.ledger.expire(now)
            self.waiting.drop_forgotten(now)
        return self._handlers[type(event)](event, now) or _NOTHING

    def _watched(self) -> dict[type[Event], Handler]:
        ledger, budgets = self.ledger, self.budgets
        listed: Mapping[type, Handler] = {
            Node: self._nodes_listed,
            Pod: self._pods_listed,
            ResourceQuota: lambda event, _: ledger.replace_quotas(event.objects),
            PodDisruptionBudget: lambda event, _: budgets.replace(event.objects),
        }
        applied: Mapping[type, Handler] = {
            Node: self._node_applied,
            Pod: self._pod_applied,
            ResourceQuota: self._quota_applied,
            PodDisruptionBudget: lambda budget, _: budgets.apply(budget),
        }
        removed: Mapping[type, Handler] = {
            Node: self._node_removed,
            Pod: self._pod_removed,
            ResourceQuota: self._quota_removed,
            PodDisruptionBudget: lambda budget, _: budgets.remove(budget),
        }
        return {
            events.Listed: lambda event, now: listed[event.kind](event, now),
            events.Applied: lambda event, now: applied[type(event.object)](event.object, now),
            events.Removed: lambda event, now: removed[type(event.object)](event.object, now),
            events.PodWatchLost: lambda *_: ledger.stop_watching(),
            events.PodWatchBack: lambda _, now: ledger.watch_from(now),
            events.PodRead: lambda event, _: self._pod_read(event.pod),
            events.Proposed: self._proposed,
        }

    def _own_events(self) -> dict[type[Event], Handler]:
        ledger, waiting = self.ledger, self.waiting
        tell, go_on, add = self.stories.tell, self.stories.go_on, self.recent.add

        def asked(event: events.Asked, now: float) -> None:
            ledger.ask(event.pod)
            tell(pod_key(event.pod), now, "kube-scheduler asked about it")

        def decided(event: events.Decided, now: float) -> None:
            pod, node, shares = event.pod, event.node, event.shares
            ledger.reserve(event.uid, pod, node, shares, event.until, others=event.others, request=event.request)
            waiting.settled(event.uid)
            tell(event.uid, now, f"node {event.node} was decided")
            add(now, pod_name(pod), What.DECIDED, node, shares)

        def refused(event: events.Refused, now: float) -> None:
            ledger.refuse(event.pod, now)
            if event.request is not None:
                waiting.refused(event.request, event.pod.spec.priority or 0, now)
            tell(pod_key(event.pod), now, "no node fitted")
            add(now, pod_name(event.pod), What.REFUSED)

        def node_chosen(event: events.NodeChosen, now: float) -> None:
            if ledger.choose(event.uid, event.node) is not None:
                ledger.extend(event.uid, event.until)
            go_on(event.uid, now, f"kube-scheduler chose node {event.node}")

        def bind_began(event: events.BindBegan, now: float) -> None:
            ledger.extend(event.uid, event.until)
            go_on(event.uid, now, f"its GPUs stay reserved for {event.until - now:.0f} s")

        def dropped(event: events.Dropped, now: float) -> None:
            ledger.forget(event.uid)
            go_on(event.uid, now, "its reservation was dropped")
            name = self.facts.names().get(event.uid)
            if name is not None:
                add(now, name, What.DROPPED)

        def room_wanted(event: events.RoomWanted, now: float) -> None:
            request = event.nomination.request
            uid = request.uid
            ledger.give_up(uid)
            self.nominations.put(event.nomination)
            go_on(uid, now, f"it was nominated for node {event.nomination.node}")
            add(now, PodName(namespace=request.namespace, name=request.pod), What.NOMINATED, event.nomination.node)

        def nudged(event: events.Nudged, now: float) -> None:
            waiting.nudged(event.uid, now)
            go_on(event.uid, now, "kube-scheduler was made to look again")

        return {
            events.Asked: asked,
            events.Decided: decided,
            events.Refused: refused,
            events.Explained: lambda event, now: self.stories.decide(event.uid, now, event.words),
            events.NodeChosen: node_chosen,
            events.BindBegan: bind_began,
            events.LockHeld: lambda event, now: self.facts.hold(event.node, event.lock, event.until, now),
            events.Dropped: dropped,
            events.BindStep: lambda event, now: go_on(event.uid, now, event.words),
            events.Nudged: nudged,
            events.WaitEnded: lambda event, _: waiting.settled(event.uid),
            events.RoomWanted: room_wanted,
            events.RoomKept: lambda event, _: ledger.keep(event.uid, event.room),
            events.RoomShortened: lambda event, _: ledger.kept().shorten(event.uid, event.until),
            events.RoomsGivenUp: lambda event, _: self._give_up(event.uids),
            events.NominationEnded: lambda event, _: self._end_nominations([event.uid]),
            events.BindingSent: lambda event, _: ledger.send(event.uid, event.attempt),
            events.LeadershipGained: lambda *_: ledger.drop_unsent(),
            events.LeadershipLost: lambda *_: self._end_nominations(self.nominations.ours()),
            events.TimePassed: lambda *_: None,
        }

    # Nodes

    def _nodes_listed(self, event: events.Listed[Node], _: float) -> Sequence[Effect]:
        nodes = event.objects
        self.ledger.replace_nodes(nodes)
        self.facts.replace_nodes(nodes)
        self._unreadable_nodes.keep_only({node.metadata.name for node in nodes})
        return [_EVERYTHING_CHANGED, *(tell for node in nodes for tell in self._unreadable_node(node))]

    def _node_applied(self, node: Node, _: float) -> Sequence[Effect]:
        self.ledger.apply_node(node)
        offers_others = self.facts.apply_node(node)
        freed = (_FREED,) if offers_others else ()
        return [Changed(node.metadata.name), *freed, *self._unreadable_node(node)]

    def _node_removed(self, node: Node, _: float) -> Sequence[Effect]:
        name = node.metadata.name
        self.ledger.remove_node(name)
        self.facts.remove_node(name)
        self._unreadable_nodes.drop(name)
        return [Changed(name)]

    def _unreadable_node(self, node: Node) -> Sequence[Tell]:
        name = node.metadata.name
        problem = self.ledger.node_problem(name)
        # The uid is the name, as in kubelet's events: `kubectl describe node` looks for that.
        return self._unreadable_nodes.update(
            name, problem, lambda: ObjectReference(api_version="v1", kind="Node", name=name, uid=name)
        )

    # Pods

    def _pods_listed(self, event: events.Listed[Pod], _: float) -> Sequence[Effect]:
        pods = event.objects
        uids = {pod_key(pod) for pod in pods}
        self.ledger.replace_pods(pods, event.version)
        self.facts.replace_pods(pods)
        self._end_nominations(self.nominations.without(uids))
        self._unreadable_pods.keep_only(uids)
        found = (effect for pod in pods for effect in (*self._nominated(pod), *self._unreadable_pod(pod)))
        return [_EVERYTHING_CHANGED, *found]

    def _pod_applied(self, pod: Pod, now: float) -> Sequence[Effect]:
        self.ledger.apply_pod(pod)
        name = pod_name(pod)
        before = self.facts.pod(name)
        if before is None and not self.facts.concerns_gpus(pod):
            return self._unreadable_pod(pod)
        self.facts.apply_pod(pod)
        if pod.spec.node_name:
            self.waiting.settled(pod_key(pod))
            if before is None or not before.node:
                self.stories.tell(pod_key(pod), now, f"it was seen on node {pod.spec.node_name}")
                self.recent.add(now, name, What.BOUND, pod.spec.node_name)
        freed = (_FREED,) if pod.has_ended else ()
        return [Changed(name), *freed, *self._nominated(pod), *self._unreadable_pod(pod)]

    def _pod_removed(self, pod: Pod, now: float) -> Sequence[Effect]:
        uid, deleted_at = pod_key(pod), version_number(pod.metadata.resource_version)
        self.ledger.remove_pod(uid, now + ORPHAN_SECONDS if outlives(pod) else None, deleted_at=deleted_at)
        self._unreadable_pods.drop(uid)
        # A pod without GPUs may have lost annotations of a GPU scheduler.
        if self.facts.pod(pod_name(pod)) is None and not self.facts.concerns_gpus(pod):
            return _NOTHING
        self.facts.remove_pod(pod)
        self.waiting.settled(uid)
        self._end_nominations([uid])
        self.stories.go_on(uid, now, "it was deleted")
        self.recent.add(now, pod_name(pod), What.DELETED, pod.spec.node_name)
        return [Changed(pod_name(pod)), _FREED]

    def _pod_read(self, pod: Pod) -> Sequence[Effect]:
        self.facts.apply_pod(pod)
        return [Changed(pod_name(pod))]

    def _unreadable_pod(self, pod: Pod) -> Sequence[Tell]:
        uid = pod_key(pod)
        problem = self.ledger.pod_problem(uid)
        if not problem:
            self._unreadable_pods.drop(uid)
            return ()
        if self.ledger.is_decided(uid):
            problem = f"{problem}; until it is corrected the GPUs that it may concern count as full"
        return self._unreadable_pods.update(uid, problem, lambda: pod_reference(pod))

    # Quotas

    def _quota_applied(self, quota: ResourceQuota, _: float) -> Sequence[Effect]:
        self.ledger.apply_quota(quota)
        return (_FREED,)

    def _quota_removed(self, quota: ResourceQuota, _: float) -> Sequence[Effect]:
        self.ledger.remove_quota(quota)
        return (_FREED,)

    # Nominations

    def _proposed(self, event: events.Proposed, _: float) -> Sequence[Effect]:
        pod, uid = event.pod, pod_key(event.pod)
        is_nominated = pod.status.nominated_node_name in event.victims_of
        if is_nominated:
            self._end_nominations([uid])
        self.nominations.propose(uid, event.victims_of)
        if event.victims_of:
            self.ledger.preempt(pod)
        # The nomination was there already, so no change of the pod may follow.
        return self._nominated(pod) if is_nominated else _NOTHING

    def _nominated(self, pod: Pod) -> Sequence[Effect]:
        """Returns the effect of a new nomination. A pod that has a reservation is nominated because kube-scheduler is
        about to bind it, and needs no room.
        """
        if not pod.status.nominated_node_name and pod_key(pod) not in self.nominations:
            return _NOTHING
        if self.nominations.is_over(pod):
            self._end_nominations([pod_key(pod)])
        elif self.nominations.is_new(pod) and self.ledger.reservation(pod_key(pod)) is None:
            return (Nominated(pod, pod.status.nominated_node_name),)
        return _NOTHING

    def _end_nominations(self, uids: Iterable[str]) -> None:
        self._give_up([uid for uid in uids if self.nominations.end(uid)])

    def _give_up(self, uids: Iterable[str]) -> None:
        for uid in uids:
            self.ledger.give_up(uid)


class _Complaints:
    """Reports what is wrong with each object: once, and again when that changes."""

    def __init__(self, reason: str) -> None:
        self._reason = reason
        self._told: dict[str, str] = {}

    def update(self, key: str, problem: str, subject: Callable[[], ObjectReference]) -> Sequence[Tell]:
        """`problem` is empty for an object that can be read."""
        if not problem:
            self.drop(key)
        elif self._told.get(key) != problem:
            self._told[key] = problem
            return (Tell(subject(), Notice(reason=self._reason, message=problem, distinct=True)),)
        return ()

    def drop(self, key: str) -> None:
        self._told.pop(key, None)

    def keep_only(self, keys: Collection[str]) -> None:
        for key in self._told.keys() - keys:
            self.drop(key)
