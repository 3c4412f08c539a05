"""How well each node suits a pod, as the answer of `/prioritize`: our order of nodes on kube-scheduler's scale."""

from collections.abc import Mapping

from scheduler_ext.policies import NodePolicy
from scheduler_ext.scheduling.decide import Decision
from scheduler_ext.scheduling.nodes import rank_nodes

HIGHEST = 10
"""MaxExtenderPriority of kube-scheduler's extender/v1."""


def priorities(policy: NodePolicy, decision: Decision) -> Mapping[str, int]:
    """`HIGHEST` for the nodes `decide` likes best, down to 1; nodes it likes equally get the same, misfits get 0."""
    steps: list[tuple[int, float]] = []
    step_of: dict[str, int] = {}
    for name in rank_nodes(policy, decision.fits, decision.connections):
        worth = (decision.connections.get(name, 0), decision.fits[name].total)
        if not steps or steps[-1] != worth:
            steps.append(worth)
        step_of[name] = len(steps) - 1
    below = max(len(steps) - 1, 1)
    scores = {name: HIGHEST - step * (HIGHEST - 1) // below for name, step in step_of.items()}
    return scores | dict.fromkeys(decision.misfits, 0)
