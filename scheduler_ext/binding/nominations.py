"""Keeps the GPUs that were freed for a pod until it comes back for them.

A pod that others are evicted for waits until those have ended, and kube-scheduler asks about it again only then. What
becomes free meanwhile is kept for it from pods of the same or a lower priority: in full for as long as its victims
take to end, and for a short time once it could have it all.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from proto.kubernetes.objects import Pod
from scheduler_ext.binding.advising import holders
from scheduler_ext.binding.view import View
from scheduler_ext.cluster.holdings import decided_holding
from scheduler_ext.cluster.kept import KeptRoom
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.requests import GpuRequest, RequestError, RequestSettings, pod_key, read_request
from scheduler_ext.scheduling.effort import Effort
from scheduler_ext.scheduling.preempt import Look, finished, placed, victims, within

log = logging.getLogger(__name__)

LONGEST_SECONDS = 3600.0
"""For victims that take their time to end."""
TAKEN_SECONDS = 120.0
"""Once the pod fits. kube-scheduler asks about it again within seconds, as an end of a pod wakes waiting ones."""
MOST_KEPT = 200
"""Pods for which room is kept at a time; the rest go without."""
MOST_EFFORT = 10_000
"""As `Effort` counts it, to find out whom kube-scheduler evicts: some 20 ms. Else no room is kept."""
MOST_LOOKED_AT = 20
"""Of them, at a time: each look is a decision about one node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nomination:
    """Where a pod is to go. `ours` says that we have evicted for it, and not kube-scheduler."""

    request: GpuRequest
    priority: int
    node: str
    ours: bool = False


class Nominations:
    """Of pods for which others were evicted, by UID; what is kept for them lies in the ledger."""

    def __init__(
        self, *, ledger: Ledger, view: View, requests: RequestSettings, monotonic: Callable[[], float]
    ) -> None:
        self._ledger = ledger
        self._view = view
        self._requests = requests
        self._monotonic = monotonic
        self._known: dict[str, Nomination] = {}
        """Also of pods whose time has passed: room is kept once for a nomination."""
        self._looked_at = 0
        self._proposed: dict[str, Mapping[str, Collection[str]]] = {}
        """By pod and node, whom kube-scheduler was told to evict."""

    def of(self, uid: str) -> Nomination | None:
        """Also when what was kept for it has gone."""
        return self._known.get(uid)

    def propose(self, pod: Pod, victims_of: Mapping[str, Collection[str]]) -> None:
        """What `/preempt` answered: kube-scheduler takes one of the nodes, and nominates the pod for it."""
        uid = pod_key(pod)
        is_nominated = pod.status.nominated_node_name in victims_of
        if is_nominated:
            self.end(uid)
        self._proposed.pop(uid, None)
        if len(self._proposed) >= MOST_KEPT:
            # The oldest makes way: kube-scheduler chooses at once.
            del self._proposed[next(iter(self._proposed))]
        self._proposed[uid] = victims_of
        if is_nominated:
            # There already: no change of the pod may follow.
            self.apply(pod)

    def replace(self, pods: Sequence[Pod]) -> None:
        """These pods and no others."""
        for uid in self._known.keys() - {pod_key(pod) for pod in pods}:
            self.end(uid)
        for pod in pods:
            self.apply(pod)

    def apply(self, pod: Pod) -> None:
        uid = pod_key(pod)
        known, node = self._known.get(uid), pod.status.nominated_node_name
        if pod.spec.node_name or pod.has_ended or pod.metadata.deletion_timestamp:
            self.end(uid)
        elif node and (known is None or known.node != node):
            self._nominate(pod, node)
        elif not node and known is not None and not known.ours:
            self.end(uid)

    def remove(self, pod: Pod) -> None:
        self.end(pod_key(pod))

    def keep(self, nomination: Nomination, gone: Iterable[str]) -> bool:
        """Keeps the room that the pod gets on the node once these pods, and those leaving anyway, are gone.

        False where it gets none, or where room is kept for too many.
        """
        request, node, priority = nomination.request, nomination.node, nomination.priority
        self._ledger.give_up(request.uid)
        self._known[request.uid] = nomination
        if len(self._ledger.kept()) >= MOST_KEPT:
            return False
        leaving = (uid for uid, is_leaving in self._pods_of(node) if is_leaving)
        decision = placed(self._ledger, request, priority=priority, node=node, gone={*gone, *leaving})
        if decision.node is None:
            return False
        of = request.namespace, request.quota_class, request.kinds
        holding = decided_holding(*of, node, decision.shares)
        until = self._monotonic() + LONGEST_SECONDS
        self._ledger.keep(request.uid, KeptRoom(holding=holding, priority=priority, until=until))
        return True

    def look(self) -> None:
        """Where a pod fits in what is kept for it by now, that is kept for a short time more."""
        now = self._monotonic()
        self._ledger.expire(now)
        rooms = self._ledger.kept()
        for uid in self._next(rooms.uids()):
            known = self._known[uid]
            if placed(self._ledger, known.request, priority=known.priority, node=known.node, gone=()).node is not None:
                rooms.shorten(uid, now + TAKEN_SECONDS)
        for uid in [uid for uid, known in self._known.items() if known.ours and rooms.get(uid) is None]:
            self.end(uid)

    def _next(self, uids: Sequence[str]) -> Sequence[str]:
        """`MOST_LOOKED_AT` of them, the next time those behind them."""
        start = self._looked_at if self._looked_at < len(uids) else 0
        self._looked_at = start + MOST_LOOKED_AT
        return uids[start : start + MOST_LOOKED_AT]

    def end_ours(self) -> None:
        """Another replica decides now, and knows nothing of whom we have evicted for."""
        for uid in [uid for uid, known in self._known.items() if known.ours]:
            self.end(uid)

    def end(self, uid: str) -> None:
        """The pod is no longer nominated: nothing is kept for it."""
        self._proposed.pop(uid, None)
        if self._known.pop(uid, None) is not None:
            self._ledger.give_up(uid)

    def _nominate(self, pod: Pod, node: str) -> None:
        """By kube-scheduler, and not only because it is about to bind the pod.

        Whom it evicts is what we told it last; after a restart it is worked out again.
        """
        try:
            request = read_request(pod, self._requests)
        except RequestError:
            return
        if request is None or self._ledger.reservation(request.uid) is not None:
            return
        priority = pod.spec.priority or 0
        gone = frozenset(self._proposed.pop(request.uid, {}).get(node, ()))
        nomination = Nomination(request=request, priority=priority, node=node)
        if self.keep(nomination, gone):
            return
        effort = Effort()
        look = Look(self._ledger, request, priority, node, effort)
        search = victims(priority, frozenset(), holders(self._view, node), look.fits)
        chosen = finished(within(search, effort, MOST_EFFORT))
        if chosen is not None:
            self.keep(nomination, chosen)

    def _pods_of(self, node: str) -> Iterable[tuple[str, bool]]:
        return ((facts.uid, facts.leaving) for facts in self._view.running(node).values())
