"""Answers `/preempt`: which evictions would get the pod its GPUs."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from proto.extender import NodeVictims
from scheduler_ext.cluster.budgets import Budgets
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.pod_index import PodIndex
from scheduler_ext.decide.effort import Effort
from scheduler_ext.decide.preempt import EvictionTrial, GpuHolder, Search, by_importance, victims
from scheduler_ext.requests import GpuRequest


def preempt(
    ledger: Ledger,
    budgets: Budgets,
    holders: Sequence[GpuHolder],
    request: GpuRequest,
    *,
    priority: int,
    node: str,
    proposed: NodeVictims,
    effort: Effort,
) -> Search[NodeVictims | None]:
    """Returns the pods to evict from the node so that the pod gets its GPUs; None if that does not help or no eviction
    is needed.

    `holders` are the node's pods that request GPUs. kube-scheduler has already counted what budgets lose by pods
    without GPUs. `effort` counts the work.
    """
    look = EvictionTrial(ledger, request, priority, node, effort)
    chosen = yield from victims(priority, frozenset(proposed.uids), holders, look.fits, budgets.violating)
    # kube-scheduler treats a node without victims as an error (callExtenders of its preemption framework).
    if not chosen:
        return None
    uids = by_importance(proposed.uids, chosen, holders)
    against = budgets.violating(each for each in _in_order(uids, holders) if not each.leaving)
    violations = max(proposed.pdb_violations, 0) + len(against - budgets.violating(_in_order(proposed.uids, holders)))
    return replace(proposed, uids=uids, pdb_violations=violations)


def holders(pods: PodIndex, node: str) -> list[GpuHolder]:
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


def _in_order(uids: Iterable[str], holders: Iterable[GpuHolder]) -> list[GpuHolder]:
    known = {holder.uid: holder for holder in holders}
    return [known[uid] for uid in uids if uid in known]
