"""What running pods are about to get more of GPUs, from the decision until their own annotations count it."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from math import inf

from msgspec.structs import replace as with_fields

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
    """The growths by pod UID."""

    _growths: dict[str, _Growth] = field(default_factory=dict)

    def begin(self, pod: Pod, counts: Footprints) -> None:
        self._growths[pod_key(pod)] = _Growth(counts, pod)

    def written(self, uid: str, version: int) -> Pod | None:
        """Returns the pod to count again; None if nothing was counted."""
        growth = self._growths.get(uid)
        if growth is None:
            return None
        self._growths[uid] = replace(growth, from_version=version)
        return growth.pod

    def end(self, uid: str) -> Pod | None:
        """Returns the pod to count again; None if nothing was counted."""
        growth = self._growths.pop(uid, None)
        return None if growth is None else growth.pod

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
