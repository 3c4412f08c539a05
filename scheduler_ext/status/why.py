"""Explains to people why a waiting pod has no node, and what would help. No IO: it runs in any thread."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct

from proto.kubernetes.objects import Pod
from scheduler_ext.capacity.evictions import ways
from scheduler_ext.capacity.judged import Judged, hints, remarks
from scheduler_ext.capacity.largest import smaller
from scheduler_ext.cluster.snapshot import Snapshot
from scheduler_ext.cluster.usage import NodeAlone
from scheduler_ext.decide.explain import need_sentence
from scheduler_ext.decide.preempt import GpuHolder

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
    """The answer. `sentence` follows the pod's name, and `less` is a request that fits now."""

    sentence: str
    asks: tuple[str, ...] = ()
    """A sentence for each container."""
    refused: tuple[RefusedNodes, ...] = ()
    ways: tuple[ShownWay, ...] = ()
    less: str = ""
    hints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """Nodes with the pods that hold their GPUs, and the quotas of one namespace, as they were at one moment."""

    namespace: str = ""
    nodes: Mapping[str, NodeAlone]
    holders: Mapping[str, Sequence[GpuHolder]]

    def alone(self, node: str, namespace: str = "") -> NodeAlone | None:
        return self.nodes.get(node) if namespace == self.namespace else None


NO_CROWD = Crowd(nodes={}, holders={})


def why_of(pod: Pod, answer: Judged, crowd: Crowd = NO_CROWD, snapshot: Snapshot | None = None) -> WhyWaiting:
    """Adds what would help: evictions in the `crowd`, and a smaller request in the `snapshot`."""
    request, decision = answer.request, answer.decision
    asks = () if request is None else tuple(need_sentence(need) for need in request.needs if need is not None)
    if request is None or decision is None or snapshot is None or decision.node is not None:
        return WhyWaiting(sentence=answer.sentence, asks=asks, hints=tuple(remarks(pod, answer)))
    found = ways(crowd, request, {node: decision.misfits[node] for node in crowd.nodes}, crowd.holders)
    less = smaller(request, snapshot)
    return WhyWaiting(
        sentence=answer.sentence,
        asks=asks,
        refused=tuple(
            RefusedNodes(reason=group.reason, nodes=len(group.nodes), nearest=group.nearest, lacks=group.lacks)
            for group in answer.refused[:MOST_GROUPS]
        ),
        ways=tuple(
            ShownWay(
                node=way.node,
                count=len(way.gone),
                pods=tuple(sorted(f"{each.namespace}/{each.name}" for each in way.gone)[:MOST_NAMED]),
            )
            for way in found
        ),
        less="" if less is None else less.words,
        hints=(*hints(answer, found), *remarks(pod, answer)),
    )
