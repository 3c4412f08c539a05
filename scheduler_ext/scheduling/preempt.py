"""Whom to evict from one node so that a pod gets its GPUs: as few and as unimportant as possible.

The way of kube-scheduler's own preemption (pkg/scheduler/framework/plugins/defaultpreemption of kubernetes/kubernetes):
take everybody away who may go, then bring back whoever fits, the most important first.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A pod that holds GPUs of the node. `created` is its creation time as the API server writes it."""

    uid: str
    priority: int
    created: str = ""


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
    # Of equally important pods the one that has run longest is spared first.
    for holder in sorted(may_go, key=lambda holder: (-holder.priority, holder.created, holder.uid)):
        without = gone - {holder.uid}
        if fits(without):
            gone = without
    return gone
