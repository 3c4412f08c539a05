"""Answers `/prioritize` and `/preempt`: how well each node suits a pod, and which evictions would help."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from proto.extender import HostPriority, NodeVictims
from proto.kubernetes.objects import Node
from proto.kubernetes.requests import HostAmount
from scheduler_ext.cluster.budgets import Budgets
from scheduler_ext.cluster.facts import Facts
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.decide.decision import Decision, decide
from scheduler_ext.decide.effort import Effort
from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.decide.preempt import EvictionTrial, GpuHolder, Search, by_importance, victims
from scheduler_ext.decide.preference import Preference
from scheduler_ext.decide.priorities import preferences, priorities, priorities_without_gpus
from scheduler_ext.requests import GpuRequest, RequestSettings

NODES_A_STEP = 200
"""Nodes rated before other requests get their turn: about one millisecond."""


def rank(index: NodeIndex, ledger: Ledger, request: GpuRequest, node_names: Sequence[str]) -> list[HostPriority]:
    """Returns each node's score, as `/prioritize` answers, for a pod for which `index` is prepared.

    The pod's own reservations count as free.
    """
    if ledger.records.reserved(request.uid) is not None:
        decision = decide(request, ledger.snapshot(request.uid), node_names)
        return _scored(preferences(request.policies.node, decision), node_names)
    return _scored(index.fitting(request, node_names, prepared=True), node_names)


def rank_without_gpus(index: NodeIndex, host: HostAmount, node_names: Sequence[str]) -> Search[list[HostPriority]]:
    """Returns scores for a pod that takes this much CPU and memory of its node, and no GPU: the more GPUs a node keeps
    usable, the higher.
    """
    levels: dict[str, int] = {}
    for start in range(0, len(node_names), NODES_A_STEP):
        levels |= index.without_gpus(host, node_names[start : start + NODES_A_STEP])
        yield
    scores = priorities_without_gpus(levels)
    return [HostPriority(name, scores[name]) for name in node_names]


def rank_simulated(request: GpuRequest, nodes: Sequence[Node], settings: RequestSettings) -> list[HostPriority]:
    """Returns the scores that the nodes would have if nothing ran on them."""
    fitting = preferences(request.policies.node, _simulated(request, nodes, settings))
    return _scored(fitting, [node.metadata.name for node in nodes])


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


def holders(facts: Facts, node: str) -> list[GpuHolder]:
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
        for name, pod in facts.running(node).items()
    ]


def _in_order(uids: Iterable[str], holders: Iterable[GpuHolder]) -> list[GpuHolder]:
    known = {holder.uid: holder for holder in holders}
    return [known[uid] for uid in uids if uid in known]


def _simulated(request: GpuRequest, nodes: Sequence[Node], settings: RequestSettings) -> Decision:
    ledger = Ledger(settings)
    ledger.replace_nodes(nodes)
    return decide(request, ledger.snapshot(), [node.metadata.name for node in nodes])


def _scored(fitting: Mapping[str, Preference], node_names: Sequence[str]) -> list[HostPriority]:
    """Returns the score of each node; 0 for a node that does not fit."""
    scores = priorities(fitting.values())
    return [HostPriority(name, scores.get(name, 0)) for name in node_names]
