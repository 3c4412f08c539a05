"""Running pods that get other GPU memory: their open wishes, and what counts before their own annotations count it."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from msgspec.structs import replace as with_fields

from proto.annotations.memory_resize import ENDED, answer_in, wish_in
from proto.kubernetes.objects import Pod, version_number
from scheduler_ext.cluster.accounting import NOTHING, Footprints
from scheduler_ext.cluster.records import PodRecord
from scheduler_ext.requests import pod_key


@dataclass(frozen=True, slots=True)
class _Growth:
    counts: Footprints
    pod: Pod
    """The pod as it was last seen."""
    from_version: float = inf
    """The resourceVersion from which on the pod's own annotations count it."""


@dataclass(slots=True)
class Growths:
    """What pods are about to get more of GPUs, from the decision until their own annotations count it, by UID."""

    _growths: dict[str, _Growth] = field(default_factory=dict)

    def begin(self, pod: Pod, counts: Footprints) -> None:
        self._growths[pod_key(pod)] = _Growth(counts, pod)

    def end(self, uid: str, version: int = 0) -> Pod | None:
        """Ends the growth, or lets it end with this resourceVersion. Returns the pod to count again; None if nothing
        was counted.
        """
        growth = self._growths.pop(uid, None)
        if growth is None:
            return None
        if version:
            self._growths[uid] = replace(growth, from_version=version)
        return growth.pod

    def keep_only(self, uids: Collection[str]) -> None:
        for uid in self._growths.keys() - uids:
            del self._growths[uid]

    def counted(self, pod: Pod, record: PodRecord | None) -> PodRecord | None:
        """Returns the record that was read from this pod, with what it is about to get."""
        uid = pod_key(pod)
        growth = self._growths.get(uid)
        if growth is None:
            return record
        if version_number(pod.metadata.resource_version) >= growth.from_version:
            del self._growths[uid]
            return record
        self._growths[uid] = replace(growth, pod=pod)
        if record is None:
            return None
        held = record.gpus.footprints
        merged = {gpu: held.get(gpu, NOTHING) | growth.counts.get(gpu, NOTHING) for gpu in {**held, **growth.counts}}
        return with_fields(record, gpus=with_fields(record.gpus, footprints=merged))


class Wishes:
    """The running pods whose wishes have not come to their end, as the watch shows them, by UID."""

    def __init__(self) -> None:
        self._pods: dict[str, Pod] = {}
        self._ended: dict[str, Pod] = {}

    def replace(self, pods: Iterable[Pod]) -> None:
        self._pods = {pod_key(pod): pod for pod in pods if _is_open(pod)}

    def apply(self, pod: Pod) -> bool:
        """Returns whether the pod has a wish that is open, or has just come to its end."""
        uid = pod_key(pod)
        if _is_open(pod):
            self._pods[uid] = pod
            return True
        was_open = self._pods.pop(uid, None) is not None
        if was_open and wish_in(pod.metadata.annotations) and not pod.has_ended:
            self._ended[uid] = pod
            return True
        return False

    def remove(self, uid: str) -> None:
        self._pods.pop(uid, None)

    def every(self) -> Mapping[str, Pod]:
        """Returns the pods whose wishes are open."""
        return self._pods

    @property
    def some_ended(self) -> bool:
        """Returns whether wishes have come to their end since the last call of `take_ended`."""
        return bool(self._ended)

    def take_ended(self) -> Sequence[Pod]:
        """Returns the pods whose wishes have come to their end since the last call."""
        ended, self._ended = tuple(self._ended.values()), {}
        return ended


def _is_open(pod: Pod) -> bool:
    """Returns whether the pod runs and has a wish without a last answer."""
    wish = wish_in(pod.metadata.annotations)
    if not wish or not pod.spec.node_name or pod.has_ended or pod.metadata.deletion_timestamp is not None:
        return False
    answer = answer_in(pod.metadata.annotations)
    return answer is None or answer.wish != wish or answer.state not in ENDED
