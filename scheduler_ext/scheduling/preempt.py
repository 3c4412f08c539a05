"""Whom to evict from one node so that a pod gets its GPUs: as few and as unimportant as possible.

The way of kube-scheduler's own preemption (pkg/scheduler/framework/plugins/defaultpreemption of kubernetes/kubernetes):
take everybody away who may go, then bring back whoever fits, the most important first.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A pod that holds GPUs of the node. `created` is its creation time as the API server writes it."""

    uid: str
    priority: int
    created: str = ""

    @property
    def rank(self) -> tuple[float, str, str]:
        """The most important first; of equally important pods the one that has run longest."""
        return -self.priority, self.created, self.uid


def victims(
    priority: int, proposed: frozenset[str], holders: Iterable[Holder], fits: Callable[[frozenset[str]], bool]
) -> frozenset[str] | None:
    """UIDs of the pods to evict for a pod of this priority; None when evicting does not help.

    `proposed` are kube-scheduler's victims: it needs them for reasons of its own, so they stay. Added to them are only
    pods of lower priority. `fits` says whether the pod gets its GPUs without the given pods.
    """
    holders = tuple(holders)
    if any(holder.uid in proposed and holder.priority >= priority for holder in holders):
        return None
    may_go = [holder for holder in holders if holder.priority < priority and holder.uid not in proposed]
    gone = proposed.union(holder.uid for holder in may_go)
    if not fits(gone):
        return None
    for holder in sorted(may_go, key=lambda holder: holder.rank):
        without = gone - {holder.uid}
        if fits(without):
            gone = without
    return gone


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
