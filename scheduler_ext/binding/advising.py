"""What `/prioritize` and `/preempt` answer: how well each node suits a pod, and what evicting pods would change."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from proto.extender import HostPriority, NodeVictims, PreemptionArgs
from proto.kubernetes.objects import Node
from scheduler_ext.binding.view import View
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.requests import GpuRequest, RequestSettings
from scheduler_ext.scheduling.decide import Decision, decide
from scheduler_ext.scheduling.preempt import Holder, victims
from scheduler_ext.scheduling.priorities import priorities


def rank(ledger: Ledger, request: GpuRequest, node_names: Sequence[str]) -> list[HostPriority]:
    """Each node's score, as `/prioritize` answers."""
    return _scored(request, decide(request, ledger.snapshot(request.uid), node_names), node_names)


def rank_simulated(request: GpuRequest, nodes: Sequence[Node], settings: RequestSettings) -> list[HostPriority]:
    """As if nothing ran on the nodes."""
    return _scored(request, _simulated(request, nodes, settings), [node.metadata.name for node in nodes])


def preempt(
    ledger: Ledger, view: View, request: GpuRequest, priority: int, args: PreemptionArgs
) -> Mapping[str, NodeVictims]:
    """The nodes on which evicting pods gets the pod its GPUs, and whom to evict there."""
    running = view.running()
    found: dict[str, NodeVictims] = {}
    for node, proposed in args.victims.items():
        holders = [
            Holder(uid=facts.uid, priority=facts.priority, created=facts.created) for facts in running.get(node, ())
        ]

        def fits(gone: Collection[str], node: str = node) -> bool:
            return decide(request, ledger.without(node, {request.uid, *gone}), [node]).node is not None

        chosen = victims(priority, frozenset(proposed.uids), holders, fits)
        # A node without victims would be an error to kube-scheduler (callExtenders of its preemption framework).
        if chosen:
            added = sorted(chosen - frozenset(proposed.uids))
            found[node] = replace(proposed, uids=(*proposed.uids, *added))
    return found


def _simulated(request: GpuRequest, nodes: Sequence[Node], settings: RequestSettings) -> Decision:
    ledger = Ledger(settings)
    ledger.replace_nodes(nodes)
    return decide(request, ledger.snapshot(), [node.metadata.name for node in nodes])


def _scored(request: GpuRequest, decision: Decision, node_names: Sequence[str]) -> list[HostPriority]:
    scores = priorities(request.policies.node, decision)
    return [HostPriority(name, scores.get(name, 0)) for name in node_names]
