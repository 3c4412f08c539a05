"""Scores nodes for the answer of `/prioritize`: our order of nodes on kube-scheduler's scale."""

from collections.abc import Iterable, Mapping

from scheduler_ext.decide.decision import Decision
from scheduler_ext.decide.preference import Preference, preference
from scheduler_ext.policies import NodePolicy

HIGHEST = 10
"""MaxExtenderPriority of kube-scheduler's extender/v1."""


def preferences(policy: NodePolicy, decision: Decision) -> Mapping[str, Preference]:
    """Returns the preferences of the nodes that fit."""
    fits, connections, levels, spared = decision.fits, decision.connections, decision.levels, decision.spared
    return {
        name: preference(
            policy, name, fits[name].total, connections.get(name, 0), levels.get(name, 0), spared=name in spared
        )
        for name in fits
    }


def priorities(fitting: Iterable[Preference]) -> Mapping[str, int]:
    """Returns `HIGHEST` for the best nodes in the order of `decide`, down to 1. Equally good nodes get the same."""
    steps: list[tuple[int, float]] = []
    step_of: dict[str, int] = {}
    for connection, total, name in sorted(fitting):
        if not steps or steps[-1] != (connection, total):
            steps.append((connection, total))
        step_of[name] = len(steps) - 1
    below = max(len(steps) - 1, 1)
    return {name: HIGHEST - step * (HIGHEST - 1) // below for name, step in step_of.items()}


def priorities_without_gpus(levels: Mapping[str, int]) -> Mapping[str, int]:
    """Returns `HIGHEST` for the nodes with the highest level of `fgd`, one less for each level below, down to 0."""
    best = max(levels.values(), default=0)
    return {name: max(HIGHEST - (best - level), 0) for name, level in levels.items()}
