"""The running pods with wishes for other GPU memory that have not come to their end, as the watch shows them."""

from collections.abc import Iterable, Mapping, Sequence

from proto.annotations.memory_resize import ENDED, answer_in, wish_in
from proto.kubernetes.objects import Pod
from scheduler_ext.requests import pod_key


class Wishes:
    """Pods by UID."""

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
