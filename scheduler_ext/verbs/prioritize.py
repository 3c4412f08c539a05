"""Answers `/prioritize`: how well each node suits a pod."""

from collections.abc import Mapping, Sequence

from proto.extender import HostPriority
from proto.kubernetes.objects import Node
from proto.kubernetes.requests import HostAmount
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.decide.decision import Decision, decide
from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.decide.preempt import Search
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


def _simulated(request: GpuRequest, nodes: Sequence[Node], settings: RequestSettings) -> Decision:
    ledger = Ledger(settings)
    ledger.replace_nodes(nodes)
    return decide(request, ledger.snapshot(), [node.metadata.name for node in nodes])


def _scored(fitting: Mapping[str, Preference], node_names: Sequence[str]) -> list[HostPriority]:
    """Returns the score of each node; 0 for a node that does not fit."""
    scores = priorities(fitting.values())
    return [HostPriority(name, scores.get(name, 0)) for name in node_names]
