"""The promises to pods: a setting that changes affects pods only until a container of theirs was served.

A pod that has begun keeps the GPUs and amounts that its annotation then had, up to what the driver's GPUs have, also
where its node offers others less by now. An annotation that changes later is no promise, but for memory that was
changed as somebody wished.
"""

from collections.abc import Mapping

from deviceplugin.allocation.decision import has_begun, lives
from proto.annotations.errors import AnnotationError
from proto.annotations.keys import DEVICES_ALLOCATED
from proto.annotations.memory_resize import answer_in
from proto.annotations.pod_devices import decode_pod_devices
from proto.kubernetes.objects import Pod


class Promises:
    def __init__(self) -> None:
        self._seen: Mapping[str, Pod] = {}
        self._promised: dict[str, str] = {}
        """Decisions by pod UID, as they were when the pod was first seen to have begun."""

    def __contains__(self, uid: object) -> bool:
        """Returns whether a container of the pod was served or created."""
        return uid in self._promised

    def note(self, pods: Mapping[str, Pod]) -> None:
        """Takes the node's pods after each change. They are never changed in place."""
        if pods is self._seen:
            return
        begun = {uid: _decision(pod) for uid, pod in pods.items() if lives(pod) and has_begun(pod)}
        known = {uid: _after_resize(pods[uid], decision) for uid, decision in self._promised.items() if uid in pods}
        self._seen, self._promised = pods, {**begun, **known}

    def begin(self, pod: Pod) -> None:
        """Takes a pod with a container that is being served, before the pod's status shows it."""
        self._promised.setdefault(pod.metadata.uid, _decision(pod))

    def is_kept(self, pod: Pod) -> bool:
        """Returns whether the pod has begun, with the decision that it has now."""
        return self._promised.get(pod.metadata.uid) == _decision(pod)


def _after_resize(pod: Pod, promised: str) -> str:
    """Returns the promise to a pod whose GPU memory was changed for it: the GPUs and cores are the same."""
    now = _decision(pod)
    if now == promised or answer_in(pod.metadata.annotations) is None:
        return promised
    return now if _without_memory(now) == _without_memory(promised) else promised


def _without_memory(decision: str) -> object:
    try:
        shares = decode_pod_devices(DEVICES_ALLOCATED, decision)
    except AnnotationError:
        return decision
    return [[(share.uuid, share.cores) for share in held] for held in shares]


def _decision(pod: Pod) -> str:
    return pod.metadata.annotations.get(DEVICES_ALLOCATED, "")
