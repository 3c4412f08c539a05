"""Waiting pods in groups: those of one owner that get the same answer. No IO: it runs in any thread."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from heapq import nsmallest

from msgspec import Struct

from proto.kubernetes.objects import Pod
from scheduler_ext.capacity.judged import Judged, likeness_of, request_of
from scheduler_ext.cluster.pod_index import seconds_of
from scheduler_ext.requests import RequestSettings
from scheduler_ext.status.why import WhyWaiting, why_of

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
        """By UID a pod, the key of its answer, and the answer where no node has to be looked at."""

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
        return pod, likeness_of(pod), why_of(pod, request) if isinstance(request, Judged) else None


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
