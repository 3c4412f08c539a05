"""Nodes on which a waiting pod would fit once other pods are gone, and these pods. Evicts none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduler_ext.decide.misfit import Misfit, NotOffered, is_unresolvable
from scheduler_ext.decide.preempt import EvictionTrial, GpuHolder, NodeSource
from scheduler_ext.requests import GpuRequest

MOST_NODES = 30
"""The most nodes that are searched: those with the fewest pods."""
MOST_HOLDERS = 200
"""A node with more pods is not searched."""
MOST_WAYS = 3
_ABOVE_ALL = 2**31
"""A priority: no room is kept against it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """The pod fits on the node once these pods are gone; the smallest set that was found, the most important first."""

    node: str
    gone: tuple[GpuHolder, ...]


def ways(
    nodes: NodeSource,
    request: GpuRequest,
    misfits: Mapping[str, Misfit | NotOffered],
    holders: Mapping[str, Sequence[GpuHolder]],
) -> tuple[Way, ...]:
    """Returns the nodes where the fewest pods would have to go. `misfits` are the nodes that refuse the request;
    `holders` are the pods that hold GPUs, by node.
    """
    found = []
    for node in crowded(misfits, {node: len(pods) for node, pods in holders.items()}):
        gone = _must_go(EvictionTrial(nodes, request, _ABOVE_ALL, node), holders[node])
        if gone:
            found.append(Way(node=node, gone=gone))
    return tuple(sorted(found, key=lambda way: (len(way.gone), way.node))[:MOST_WAYS])


def crowded(misfits: Mapping[str, Misfit | NotOffered], pods: Mapping[str, int]) -> Sequence[str]:
    """Returns the nodes where evictions may help, those with the fewest pods first. `pods` counts them by node."""
    counts = sorted((pods.get(node, 0), node) for node, misfit in misfits.items() if not is_unresolvable(misfit))
    return [node for count, node in counts if 0 < count <= MOST_HOLDERS][:MOST_NODES]


def _must_go(trial: EvictionTrial, holders: Sequence[GpuHolder]) -> tuple[GpuHolder, ...]:
    """Lets all go, then takes back each pod that fits beside the request, the most important first. Empty if the
    request fits without any of them, or not even without all of them.
    """
    ranked = sorted(holders, key=lambda holder: holder.rank)
    gone = {holder.uid for holder in ranked}
    if not trial.fits(frozenset(gone)):
        return ()
    for holder in ranked:
        if trial.fits(frozenset(gone - {holder.uid})):
            gone.remove(holder.uid)
    return tuple(holder for holder in ranked if holder.uid in gone)
