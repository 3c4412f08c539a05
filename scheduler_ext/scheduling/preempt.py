"""Whom to evict from one node so that a pod gets its GPUs: as few and as unimportant as possible.

The way of kube-scheduler's own preemption (pkg/scheduler/framework/plugins/defaultpreemption of kubernetes/kubernetes):
take all pods away that may go, then bring back those that fit beside it, the most important first.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from scheduler_ext.cluster.budgets import Budgets
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.requests import GpuRequest
from scheduler_ext.scheduling.decide import Decision, decide

MOST_VICTIMS = 64
"""More of them are never evicted for one pod by ourselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A pod that holds GPUs of the node. `created` is its creation time as the API server writes it."""

    uid: str
    priority: int
    created: str = ""
    name: str = ""
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    leaving: bool = False
    """It is being deleted already."""

    @property
    def rank(self) -> tuple[float, str, str]:
        """The most important first; of equally important pods the one that has run longest."""
        return -self.priority, self.created, self.uid


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Whom to evict from a node; empty where those that are leaving anyway make room enough."""

    node: str
    victims: tuple[Holder, ...]
    """The most important first."""

    @property
    def merit(self) -> tuple[int, int, int, str]:
        """The largest is carried out, as kube-scheduler compares nodes (pickOneNodeForPreemption)."""
        if not self.victims:
            return 1, 0, 0, ""
        highest = self.victims[0].priority
        pain = sum(holder.priority + 2**31 for holder in self.victims)
        since = min(holder.created for holder in self.victims if holder.priority == highest)
        return -highest - 2**31, -pain, -len(self.victims), since


def plan(
    ledger: Ledger,
    budgets: Budgets,
    request: GpuRequest,
    *,
    priority: int,
    node: str,
    holders: Iterable[Holder],
    spared: Collection[str] = (),
) -> Plan | None:
    """How the pod gets its GPUs on the node within every budget and without the pods `spared`; None if it does not.

    Which of a budget's pods may go is settled first, the least important before others: where that does not help, a
    choice that would is not looked for.
    """
    holders = sorted(holders, key=lambda holder: holder.rank)
    lower = [each for each in holders if each.priority < priority and not each.leaving and each.uid not in spared]
    protected = budgets.violating(reversed(lower))
    may_go = [each for each in holders if each.leaving or (each in lower and each.uid not in protected)]

    def fits(gone: frozenset[str]) -> bool:
        return placed(ledger, request, priority=priority, node=node, gone=gone).node is not None

    if _lacks_quota_only(ledger, request, priority, node):
        return None
    chosen = victims(priority, frozenset(), may_go, fits)
    if chosen is None or len(chosen) > MOST_VICTIMS:
        return None
    return Plan(node=node, victims=tuple(each for each in holders if each.uid in chosen))


def _lacks_quota_only(ledger: Ledger, request: GpuRequest, priority: int, node: str) -> bool:
    """Whether the GPUs are there, and its namespace may not have more of them: other pods are not the reason."""
    left = ledger.without(node, {request.uid}, request.namespace, priority=priority)
    return decide(request, replace(left, quotas={}), [node]).node is not None


def placed(ledger: Ledger, request: GpuRequest, *, priority: int, node: str, gone: Collection[str]) -> Decision:
    """The pod on this node, were these pods gone; room kept for it, or for pods of lower priority, is free for it."""
    left = ledger.without(node, {request.uid, *gone}, request.namespace, priority=priority)
    return decide(request, left, [node])


def victims(
    priority: int,
    proposed: frozenset[str],
    holders: Iterable[Holder],
    fits: Callable[[frozenset[str]], bool],
    violating: Callable[[Iterable[Holder]], Collection[str]] = lambda _: (),
) -> frozenset[str] | None:
    """UIDs of the pods to evict for a pod of this priority; None when evicting does not help.

    `proposed` are kube-scheduler's victims: it needs them for reasons of its own, so they stay. Added to them are only
    pods of lower priority, first those that `violating` does not name: it says for whom budgets leave nothing, were
    the given pods evicted in their order. `fits` says whether the pod gets its GPUs without the given pods.
    """
    holders = sorted(holders, key=lambda holder: holder.rank)
    if any(holder.uid in proposed and holder.priority >= priority for holder in holders):
        return None
    leaving = frozenset(holder.uid for holder in holders if holder.leaving)
    stay_out = proposed | leaving
    may_go = [holder for holder in holders if holder.priority < priority and holder.uid not in stay_out]
    if not fits(stay_out.union(holder.uid for holder in may_go)):
        return None
    against = violating((*(holder for holder in holders if holder.uid in proposed), *reversed(may_go)))
    first_spared = sorted(may_go, key=lambda holder: holder.uid not in against)
    needed = _needed([holder.uid for holder in first_spared], lambda gone: fits(stay_out | gone))
    return proposed | needed


def _needed(uids: Sequence[str], fits: Callable[[frozenset[str]], bool]) -> frozenset[str]:
    """Those of the pods that have to go, the first spared first. All of them together are enough.

    Where room never hurts, this is what bringing them back one by one would give; runs of them are brought back
    together, so that it takes few looks where few have to go, and never more than three for each pod.
    """
    gone, start = frozenset(uids), 0
    while start < len(uids):
        spared = _longest_run(gone, uids[start:], fits)
        gone = gone.difference(uids[start : start + spared])
        start += spared + 1
    for uid in uids:
        if uid in gone and fits(gone - {uid}):
            gone -= {uid}
    return gone


def _longest_run(gone: frozenset[str], uids: Sequence[str], fits: Callable[[frozenset[str]], bool]) -> int:
    """How many of the first of them need not go: one look where the very first has to."""
    run, step = 0, 1
    while run + step <= len(uids) and fits(gone.difference(uids[: run + step])):
        run, step = run + step, step * 2
    too_many = min(run + step, len(uids) + 1)
    while too_many - run > 1:
        middle = (run + too_many) // 2
        if fits(gone.difference(uids[:middle])):
            run = middle
        else:
            too_many = middle
    return run


def by_importance(proposed: Sequence[str], chosen: frozenset[str], holders: Iterable[Holder]) -> tuple[str, ...]:
    """The chosen pods, the most important first: by its first victim kube-scheduler compares a node with others.

    `proposed` are in that order. One that holds no GPUs, whose priority is not known here, stays behind the one before.
    """
    holders = sorted(holders, key=lambda holder: holder.rank)
    added = [holder.uid for holder in holders if holder.uid in chosen and holder.uid not in proposed]
    priorities: dict[str, float] = {holder.uid: holder.priority for holder in holders}
    least = inf
    for uid in proposed:
        priorities[uid] = least = min(least, priorities.get(uid, least))
    return tuple(sorted((*proposed, *added), key=lambda uid: -priorities[uid]))
