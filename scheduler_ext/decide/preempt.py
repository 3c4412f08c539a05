"""Chooses the pods to evict from one node so that a pod gets its GPUs: as few and as unimportant as possible.

It works like kube-scheduler's preemption (pkg/scheduler/framework/plugins/defaultpreemption of kubernetes/kubernetes):
remove all pods that may be evicted, then bring back those that fit beside the pod, the most important first.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from scheduler_ext.cluster.budgets import Budgets
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.pod_index import PodIndex
from scheduler_ext.cluster.registered import UNREGISTERED
from scheduler_ext.cluster.snapshot import Snapshot, quota_for
from scheduler_ext.cluster.usage import NodeAlone
from scheduler_ext.decide.decision import Decision, decide
from scheduler_ext.decide.effort import Effort, SteppedSearch
from scheduler_ext.decide.misfit import Misfit
from scheduler_ext.decide.place import place
from scheduler_ext.requests import GpuRequest

EFFORT_OF_A_LOOK = 10
"""Effort of one look, in addition to what the node has."""
MOST_VICTIMS = 64
"""We never evict more pods than this for one pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHolder:
    """A pod that holds GPUs of the node. `created` is its creation time as the API server writes it."""

    uid: str
    priority: int
    created: str = ""
    name: str = ""
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    leaving: bool = False
    """True if the pod is being deleted already."""

    @property
    def rank(self) -> tuple[float, str, str]:
        """Returns a key for sorting: the most important pod comes first; of equally important pods the one that has run
        longest.
        """
        return -self.priority, self.created, self.uid


def gpu_holders(pods: PodIndex, node: str) -> list[GpuHolder]:
    """Returns the node's pods that request GPUs and have not ended."""
    return [
        GpuHolder(
            uid=pod.uid,
            priority=pod.priority,
            created=pod.created,
            name=name.name,
            namespace=name.namespace,
            labels=pod.labels,
            leaving=pod.leaving,
        )
        for name, pod in pods.running(node).items()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionPlan:
    """Pods to evict from a node. Empty if the pods that are leaving already make enough room."""

    node: str
    victims: tuple[GpuHolder, ...]
    """The victims, the most important first."""

    @property
    def merit(self) -> tuple[int, int, int, str]:
        """Returns a key to compare plans: the plan with the largest one wins, as kube-scheduler compares nodes
        (pickOneNodeForPreemption).
        """
        if not self.victims:
            return 1, 0, 0, ""
        highest = self.victims[0].priority
        pain = sum(holder.priority + 2**31 for holder in self.victims)
        since = min(holder.created for holder in self.victims if holder.priority == highest)
        return -highest - 2**31, -pain, -len(self.victims), since


def plan_evictions(
    trial: "EvictionTrial", budgets: Budgets, holders: Iterable[GpuHolder], spared: Collection[str] = ()
) -> SteppedSearch[EvictionPlan | None]:
    """Plans how the pod of the trial gets its GPUs on the node within every budget and without evicting the pods
    `spared`. Returns None if that is impossible.

    It first settles which pods of each budget may go, the least important first. It does not search further: if this
    choice does not help, it returns None even where another one would.
    """
    holders, priority = sorted(holders, key=lambda holder: holder.rank), trial.priority
    lower = [each for each in holders if each.priority < priority and not each.leaving and each.uid not in spared]
    protected = budgets.violating(reversed(lower))
    may_go = [each for each in holders if each.leaving or (each in lower and each.uid not in protected)]
    if trial.fits(frozenset(), without_quotas=True):
        # The namespace may not have more GPUs: other pods are not the reason.
        return None
    yield
    chosen = yield from victims(priority, frozenset(), may_go, trial.fits)
    if chosen is None or len(chosen) > MOST_VICTIMS:
        return None
    return EvictionPlan(node=trial.node, victims=tuple(each for each in holders if each.uid in chosen))


def decide_without(ledger: Ledger, request: GpuRequest, *, priority: int, node: str, gone: Collection[str]) -> Decision:
    """Returns the decision for the pod on this node if these pods were gone. Room kept for the pod, or for pods of
    lower priority, is free for it.
    """
    alone = ledger.alone(node, request.namespace)
    left = (
        Snapshot(unregistered={node: ledger.nodes.unregistered().get(node, UNREGISTERED)})
        if alone is None
        else alone.without({request.uid, *gone}, request.namespace, priority=priority)
    )
    return decide(request, left, [node])


class EvictionTrial:
    """Judges whether a pod of this priority gets its GPUs on a node if other pods were gone."""

    def __init__(
        self, alone: NodeAlone | None, request: GpuRequest, priority: int, effort: Effort | None = None
    ) -> None:
        """`alone` is the node with the quotas of the pod's namespace; None for one that is not registered. `effort`
        counts what the looks cost.
        """
        self._alone = alone
        self._request = request
        self.priority = priority
        self.node = "" if alone is None else alone.node.name
        self._effort = effort or Effort()

    def fits(self, gone: frozenset[str], *, without_quotas: bool = False) -> bool:
        """Returns whether the pod gets its GPUs without these pods. Room kept for the pod, or for pods of lower
        priority, counts as free.
        """
        alone, request = self._alone, self._request
        if alone is None:
            return False
        gone |= {request.uid}
        self._effort.made += EFFORT_OF_A_LOOK + len(alone.held) // 2
        quota = None if without_quotas else quota_for(request.quota_class, alone.quotas_of(request.namespace, gone))
        usage = alone.usage(gone, at_least=self.priority)
        return not isinstance(place(request, usage, quota, self._effort), Misfit)


def victims(
    priority: int,
    proposed: frozenset[str],
    holders: Iterable[GpuHolder],
    fits: Callable[[frozenset[str]], bool],
    violating: Callable[[Iterable[GpuHolder]], Collection[str]] = lambda _: (),
) -> SteppedSearch[frozenset[str] | None]:
    """Returns the UIDs of the pods to evict for a pod of this priority; None if evicting does not help.

    `proposed` are kube-scheduler's victims: it needs them for its own reasons, so they stay. Only pods of lower
    priority are added. Those that `violating` does not name come first: it names pods whose budget leaves nothing if
    the given pods were evicted in their order. `fits` returns whether the pod gets its GPUs without the given pods.
    """
    holders = sorted(holders, key=lambda holder: holder.rank)
    if any(holder.uid in proposed and holder.priority >= priority for holder in holders):
        return None
    leaving = frozenset(holder.uid for holder in holders if holder.leaving)
    stay_out = proposed | leaving
    may_go = [holder for holder in holders if holder.priority < priority and holder.uid not in stay_out]
    if not fits(stay_out.union(holder.uid for holder in may_go)):
        return None
    yield
    against = violating((*(holder for holder in holders if holder.uid in proposed), *reversed(may_go)))
    first_spared = sorted(may_go, key=lambda holder: holder.uid not in against)
    gone = yield from needed_victims([holder.uid for holder in first_spared], lambda gone: fits(stay_out | gone))
    return proposed | gone


def needed_victims(uids: Sequence[str], fits: Callable[[frozenset[str]], bool]) -> SteppedSearch[frozenset[str]]:
    """Returns the pods that have to go; the first ones are spared first. All of them together are enough.

    Where room never hurts, the result equals bringing the pods back one by one. Runs of pods are brought back together:
    few looks where few pods have to go, never more than three for each pod.
    """
    gone, start = frozenset(uids), 0
    while start < len(uids):
        spared = yield from _longest_run(gone, uids[start:], fits)
        gone = gone.difference(uids[start : start + spared])
        start += spared + 1
    for uid in uids:
        if uid in gone:
            if fits(gone - {uid}):
                gone -= {uid}
            yield
    return gone


def _longest_run(
    gone: frozenset[str], uids: Sequence[str], fits: Callable[[frozenset[str]], bool]
) -> SteppedSearch[int]:
    """Returns how many of the first pods may stay. This takes one look if the very first has to go."""
    run, step = 0, 1
    while run + step <= len(uids) and fits(gone.difference(uids[: run + step])):
        run, step = run + step, step * 2
        yield
    too_many = min(run + step, len(uids) + 1)
    while too_many - run > 1:
        middle = (run + too_many) // 2
        if fits(gone.difference(uids[:middle])):
            run = middle
        else:
            too_many = middle
        yield
    return run


def by_importance(proposed: Sequence[str], chosen: frozenset[str], holders: Iterable[GpuHolder]) -> tuple[str, ...]:
    """Returns the chosen pods, the most important first: kube-scheduler compares nodes by the first victim.

    `proposed` are in that order. A pod that holds no GPUs has no known priority here; it stays behind the one before
    it.
    """
    holders = sorted(holders, key=lambda holder: holder.rank)
    added = [holder.uid for holder in holders if holder.uid in chosen and holder.uid not in proposed]
    priorities: dict[str, float] = {holder.uid: holder.priority for holder in holders}
    least = inf
    for uid in proposed:
        priorities[uid] = least = min(least, priorities.get(uid, least))
    return tuple(sorted((*proposed, *added), key=lambda uid: -priorities[uid]))


MOST_ROOMS = 20
"""Nodes with room kept for other pods that are tried for one pod."""


def decide_in_own_room(
    ledger: Ledger, node: str, request: GpuRequest, priority: int, node_names: Collection[str]
) -> Decision | None:
    """Returns a decision for the node where room is kept for the pod; None if the pod does not fit there yet."""
    if node not in node_names:
        return None
    decision = decide_without(ledger, request, priority=priority, node=node, gone=())
    return None if decision.node is None else decision


class TakenRoom(NamedTuple):
    """A decision for a node, and the pods whose room there has to be given up for it."""

    decision: Decision
    uids: Collection[str]


def decide_in_room_of_others(
    ledger: Ledger, request: GpuRequest, priority: int, node_names: Collection[str]
) -> TakenRoom | None:
    """Returns a decision for a node whose room is kept for pods of lower priority, for a pod that fits nowhere else.
    None if no such room is enough.
    """
    rooms = ledger.records.kept_below(priority)
    offered = [node for node in node_names if node in rooms] if rooms else []
    for node in offered[:MOST_ROOMS]:
        decision = decide_without(ledger, request, priority=priority, node=node, gone=())
        if decision.node is not None:
            return TakenRoom(decision, rooms[node])
    return None
