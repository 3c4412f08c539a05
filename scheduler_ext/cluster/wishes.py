"""The running pods that wait for the extender's decision about other GPU memory, as the watch shows them."""

from collections.abc import Iterable, Mapping

from proto.annotations.keys import MEMORY_WISH
from proto.annotations.memory_resize import ResizeState, answer_in
from proto.kubernetes.objects import Pod
from scheduler_ext.requests import pod_key

_OURS = frozenset({ResizeState.READY, ResizeState.GROWING})


class Wishes:
    """Pods by UID."""

    def __init__(self) -> None:
        self._pods: dict[str, Pod] = {}

    def replace(self, pods: Iterable[Pod]) -> None:
        self._pods = {pod_key(pod): pod for pod in pods if waits_for_decision(pod)}

    def apply(self, pod: Pod) -> bool:
        """Returns whether the pod waits."""
        if waits_for_decision(pod):
            self._pods[pod_key(pod)] = pod
            return True
        self._pods.pop(pod_key(pod), None)
        return False

    def remove(self, uid: str) -> None:
        self._pods.pop(uid, None)

    def every(self) -> Mapping[str, Pod]:
        return self._pods


def waits_for_decision(pod: Pod) -> bool:
    """Returns whether the pod has a wish that the extender may have to decide on."""
    wish = pod.metadata.annotations.get(MEMORY_WISH, "")
    if not wish or not pod.spec.node_name or pod.has_ended or pod.metadata.deletion_timestamp is not None:
        return False
    answer = answer_in(pod.metadata.annotations)
    return answer is None or answer.wish != wish or answer.state in _OURS
