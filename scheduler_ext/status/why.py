"""Explains why a waiting pod fits nowhere, and what would have to go or change. No IO: it runs in any thread."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct

from program.words import counted, gib
from scheduler_ext.capacity.evictions import MOST_HOLDERS, MOST_NODES, ways
from scheduler_ext.capacity.largest import Amount, Smaller, smaller
from scheduler_ext.capacity.nearest import Refusing, grouped
from scheduler_ext.cluster.alone import NodeAlone
from scheduler_ext.cluster.snapshot import Snapshot
from scheduler_ext.decide.decision import decide
from scheduler_ext.decide.misfit import Misfit, NotOffered
from scheduler_ext.decide.preempt import GpuHolder
from scheduler_ext.decide.unresolvable import is_unresolvable
from scheduler_ext.requests import GpuRequest

MOST_GROUPS = 6
MOST_NAMED = 8
"""Pods that are named of those that would have to go."""


class RefusedNodes(Struct, frozen=True, omit_defaults=True):
    """Nodes with the same reason. `nearest` is the one that lacks least."""

    reason: str
    nodes: int
    nearest: str = ""
    lacks: str = ""


class ShownWay(Struct, frozen=True):
    """The pod fits on the node once `count` pods are gone; `pods` names the first of them."""

    node: str
    count: int
    pods: tuple[str, ...]


class WhyWaiting(Struct, frozen=True, omit_defaults=True):
    """`hint` is a sentence about what would help, or that nothing does."""

    refused: tuple[RefusedNodes, ...] = ()
    ways: tuple[ShownWay, ...] = ()
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfits:
    """The nodes that refuse a request, each with its reason. Empty if it fits somewhere now."""

    by_node: Mapping[str, Misfit | NotOffered]
    smaller: Smaller | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """Nodes with the pods that hold their GPUs, and the quotas of one namespace, as they were at one moment."""

    namespace: str
    nodes: Mapping[str, NodeAlone]
    holders: Mapping[str, Sequence[GpuHolder]]

    def alone(self, node: str, namespace: str = "") -> NodeAlone | None:
        return self.nodes.get(node) if namespace == self.namespace else None


def misfits_of(request: GpuRequest, snapshot: Snapshot) -> Misfits:
    broken = (name for name, reason in snapshot.unregistered.items() if ": " in reason)
    decision = decide(request, snapshot, [*snapshot.nodes, *broken])
    if decision.node is not None:
        return Misfits(by_node={}, smaller=None)
    return Misfits(by_node=decision.misfits, smaller=smaller(request, snapshot))


def crowded(misfits: Misfits, pods: Mapping[str, int]) -> Sequence[str]:
    """Returns the nodes where evictions may help, those with the fewest pods. `pods` counts them by node."""
    able = (node for node, misfit in misfits.by_node.items() if not is_unresolvable(misfit))
    counts = sorted((pods.get(node, 0), node) for node in able)
    return [node for count, node in counts if 0 < count <= MOST_HOLDERS][:MOST_NODES]


def why_of(request: GpuRequest, misfits: Misfits, crowd: Crowd) -> WhyWaiting:
    if not misfits.by_node:
        return WhyWaiting(hint="It fits now: kube-scheduler will try it again.")
    named = {node: misfits.by_node[node] for node in crowd.nodes}
    found = ways(crowd, request, named, crowd.holders)
    return WhyWaiting(
        refused=tuple(map(_refused, grouped(misfits.by_node, request.filter)[:MOST_GROUPS])),
        ways=tuple(
            ShownWay(
                node=way.node,
                count=len(way.gone),
                pods=tuple(sorted(f"{each.namespace}/{each.name}" for each in way.gone)[:MOST_NAMED]),
            )
            for way in found
        ),
        hint=_hint(misfits, has_ways=bool(found)),
    )


def _refused(group: Refusing) -> RefusedNodes:
    return RefusedNodes(reason=group.reason, nodes=len(group.nodes), nearest=group.nearest, lacks=group.lacks)


def _hint(misfits: Misfits, *, has_ways: bool) -> str:
    if misfits.smaller is not None:
        return f"It would fit now if it asked for {_less(misfits.smaller)}."
    if not has_ways and all(map(is_unresolvable, misfits.by_node.values())):
        return "It would not fit on an empty node either: change what it asks for, or add nodes."
    return ""


def _less(found: Smaller) -> str:
    match found.amount:
        case Amount.MEMORY:
            return f"{gib(found.at_most)} of memory of each GPU instead of {gib(found.asked)}"
        case Amount.CORES:
            return f"{found.at_most} % of cores of each GPU instead of {found.asked} %"
    return f"{counted(found.at_most, 'GPU')} instead of {found.asked}"
