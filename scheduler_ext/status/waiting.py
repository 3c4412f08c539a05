"""Waiting pods in groups of one owner with one answer: why they have no node, and what would help.

No IO: it runs in any thread.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest

from msgspec import Struct

from proto.kubernetes.objects import Pod
from scheduler_ext.capacity.largest import smaller
from scheduler_ext.capacity.nearest import ways
from scheduler_ext.capacity.pod_verdict import PodVerdict, hints, likeness_of, remarks, request_of
from scheduler_ext.cluster.pod_index import seconds_of
from scheduler_ext.cluster.snapshot import Snapshot
from scheduler_ext.cluster.usage import NodeAlone
from scheduler_ext.decide.explain import need_sentence
from scheduler_ext.decide.preempt import GpuHolder
from scheduler_ext.requests import RequestSettings

MOST_REASONS = 6
MOST_GONE_NAMED = 8
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
    """Nodes with the pods that hold their GPUs, and the quotas of the pod's namespace, as they were at one moment."""

    nodes: Mapping[str, NodeAlone]
    holders: Mapping[str, Sequence[GpuHolder]]


NO_CROWD = Crowd(nodes={}, holders={})


def why_of(pod: Pod, answer: PodVerdict, crowd: Crowd = NO_CROWD, snapshot: Snapshot | None = None) -> WhyWaiting:
    """Adds what would help: evictions in the `crowd`, and a smaller request in the `snapshot`."""
    request, decision = answer.request, answer.decision
    asks = () if request is None else tuple(need_sentence(need) for need in request.needs if need is not None)
    if request is None or decision is None or snapshot is None or decision.node is not None:
        return WhyWaiting(sentence=answer.sentence, asks=asks, hints=tuple(remarks(pod, answer)))
    found = ways(crowd.nodes.get, request, {node: decision.misfits[node] for node in crowd.nodes}, crowd.holders)
    less = smaller(request, snapshot)
    return WhyWaiting(
        sentence=answer.sentence,
        asks=asks,
        refused=tuple(
            RefusedNodes(reason=group.reason, nodes=len(group.nodes), nearest=group.nearest, lacks=group.lacks)
            for group in answer.refused[:MOST_REASONS]
        ),
        ways=tuple(
            ShownWay(
                node=way.node,
                count=len(way.gone),
                pods=tuple(sorted(f"{each.namespace}/{each.name}" for each in way.gone)[:MOST_GONE_NAMED]),
            )
            for way in found
        ),
        less="" if less is None else less.words,
        hints=(*hints(answer, found), *remarks(pod, answer)),
    )


MOST_GROUPS = 200
MOST_NAMED = 50
"""Pods of one group that are named."""


class ShownGroup(Struct, frozen=True, omit_defaults=True):
    """Waiting pods of one namespace and owner with one answer. `pods` has name, creation and priority of those of the
    highest priority and the longest wait; `count` counts all. `why` is None before the first search.
    """

    namespace: str
    owner: str
    count: int
    pods: tuple[tuple[str, float, int], ...]
    why: WhyWaiting | None = None


@dataclass(frozen=True, slots=True)
class WaitingGroup:
    """A group, the key of its answer, and one of its pods."""

    shown: ShownGroup
    kind: bytes
    example: Pod


class WaitingGroups:
    """Groups pods again and again, and remembers what it has read of each."""

    def __init__(self, settings: RequestSettings) -> None:
        self._settings = settings
        self._read: dict[str, tuple[Pod, bytes, WhyWaiting | None]] = {}
        """Pods by UID, the key of each answer, and the answer where no node has to be looked at."""

    def of(self, pods: Mapping[str, Pod], why: Callable[[bytes], WhyWaiting | None]) -> tuple[WaitingGroup, ...]:
        """Returns the groups of the highest priority and the longest wait. `why` returns answers by their key."""
        self._read = {uid: self._known(uid, pod) for uid, pod in pods.items()}
        alike: dict[tuple[str, str, bytes], list[tuple[Pod, WhyWaiting | None]]] = {}
        for pod, kind, answer in self._read.values():
            alike.setdefault((pod.metadata.namespace, owner_of(pod), kind), []).append((pod, answer))
        groups = (_group(*key, members, members[0][1] or why(key[2])) for key, members in alike.items())
        return tuple(nsmallest(MOST_GROUPS, groups, key=_urgency))

    def _known(self, uid: str, pod: Pod) -> tuple[Pod, bytes, WhyWaiting | None]:
        known = self._read.get(uid)
        if known is not None and known[0] is pod:
            return known
        request = request_of(pod, self._settings)
        return pod, likeness_of(pod), why_of(pod, request) if isinstance(request, PodVerdict) else None


def _group(
    namespace: str, owner: str, kind: bytes, members: Iterable[tuple[Pod, WhyWaiting | None]], why: WhyWaiting | None
) -> WaitingGroup:
    pods = [pod for pod, _ in members]
    first = nsmallest(MOST_NAMED, map(_named, pods), key=lambda pod: (-pod[2], pod[1], pod[0]))
    return WaitingGroup(ShownGroup(namespace, owner, len(pods), tuple(first), why), kind, pods[0])


def _urgency(group: WaitingGroup) -> tuple[int, float]:
    _, created, priority = group.shown.pods[0]
    return -priority, created


def _named(pod: Pod) -> tuple[str, float, int]:
    return pod.metadata.name, seconds_of(pod.metadata.creation_timestamp), pod.spec.priority or 0


def owner_of(pod: Pod) -> str:
    """Returns `Job/train`; empty for a pod that was made alone."""
    return next((f"{each.kind}/{each.name}" for each in pod.metadata.owner_references if each.controller), "")
