"""Finds kept room that a pod may take: its own, or that of pods with lower priority."""

from collections.abc import Collection, Sequence

from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.decide.decision import Decision
from scheduler_ext.decide.preempt import placed
from scheduler_ext.requests import GpuRequest

MOST_JUDGED = 20
"""Nodes with room kept for other pods that are judged for one pod."""


def in_its_own(ledger: Ledger, request: GpuRequest, priority: int, node_names: Sequence[str]) -> Decision | None:
    """Returns a decision for the node whose room is kept for the pod; None if the pod does not fit there yet."""
    room = ledger.records.kept(request.uid)
    if room is None or room.node not in node_names:
        return None
    decision = placed(ledger, request, priority=priority, node=room.node, gone=())
    return None if decision.node is None else decision


def in_that_of_others(
    ledger: Ledger, request: GpuRequest, priority: int, node_names: Sequence[str]
) -> tuple[Decision, Collection[str]] | None:
    """Returns a decision for a node whose room is kept for pods of lower priority, and the pods whose room has to be
    given up for it. The pod fits nowhere else. None if no such room is enough.
    """
    rooms = ledger.records.kept_below(priority)
    offered = [node for node in node_names if node in rooms] if rooms else []
    for node in offered[:MOST_JUDGED]:
        decision = placed(ledger, request, priority=priority, node=node, gone=())
        if decision.node is not None:
            return decision, rooms[node]
    return None
