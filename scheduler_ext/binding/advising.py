"""What `/prioritize` and `/preempt` answer: how well each node suits a pod, and what evicting pods would change."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from proto.extender import HostPriority, NodeVictims
from proto.kubernetes.objects import Node
from scheduler_ext.binding.view import PodFacts
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.requests import GpuRequest, RequestSettings
from scheduler_ext.scheduling.candidates import Candidates
from scheduler_ext.scheduling.decide import Decision, decide
from scheduler_ext.scheduling.nodes import Preference
from scheduler_ext.scheduling.preempt import Holder, by_importance, victims
from scheduler_ext.scheduling.priorities import preferences, priorities


def rank(candidates: Candidates, ledger: Ledger, request: GpuRequest, node_names: Sequence[str]) -> list[HostPriority]:
    """Each node's score, as `/prioritize` answers. What the pod has reserved itself does not stand in its way."""
    if ledger.reservation(request.uid) is not None:
        decision = decide(request, ledger.snapshot(request.uid), node_names)
        return _scored(preferences(request.policies.node, decision), node_names)
    return _scored(candidates.fitting(request, node_names), node_names)


def rank_simulated(request: GpuRequest, nodes: Sequence[Node], settings: RequestSettings) -> list[HostPriority]:
    """As if nothing ran on the nodes."""
    fitting = preferences(request.policies.node, _simulated(request, nodes, settings))
    return _scored(fitting, [node.metadata.name for node in nodes])


def preempt(
    ledger: Ledger,
    running: Iterable[PodFacts],
    request: GpuRequest,
    *,
    priority: int,
    node: str,
    proposed: NodeVictims,
) -> NodeVictims | None:
    """Whom to evict from the node so that the pod gets its GPUs; None where that does not help, or nobody has to go.

    `running` are the node's pods that ask for GPUs.
    """

    def fits(gone: Collection[str]) -> bool:
        left = ledger.without(node, {request.uid, *gone}, request.namespace)
        return decide(request, left, [node]).node is not None

    holders = [Holder(uid=facts.uid, priority=facts.priority, created=facts.created) for facts in running]
    chosen = victims(priority, frozenset(proposed.uids), holders, fits)
    # A node without victims would be an error to kube-scheduler (callExtenders of its preemption framework).
    if not chosen:
        return None
    return replace(proposed, uids=by_importance(proposed.uids, chosen, holders))


def _simulated(request: GpuRequest, nodes: Sequence[Node], settings: RequestSettings) -> Decision:
    ledger = Ledger(settings)
    ledger.replace_nodes(nodes)
    return decide(request, ledger.snapshot(), [node.metadata.name for node in nodes])


def _scored(fitting: Mapping[str, Preference], node_names: Sequence[str]) -> list[HostPriority]:
    """Nodes that do not fit get 0."""
    scores = priorities(fitting.values())
    return [HostPriority(name, scores.get(name, 0)) for name in node_names]
