"""What is worked out of each pod once, and again when the pod has changed: news come far more often."""

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from proto.kubernetes.objects import Pod

G = TypeVar("G")
T = TypeVar("T")


class ByPod(Generic[G, T]):
    """`work` is given a pod and what else the answer depends on. A pod that changed is another object."""

    def __init__(self, work: Callable[[Pod, G], T]) -> None:
        self._work = work
        self._given: G | None = None
        self._known: dict[str, tuple[Pod, T]] = {}

    def of(self, pods: Mapping[str, Pod], given: G) -> tuple[T, ...]:
        """By pod, in order. `pods` by UID; those that are gone are forgotten."""
        known, self._given = (self._known if given == self._given else {}), given
        self._known = {}
        for uid, pod in pods.items():
            before = known.get(uid)
            self._known[uid] = before if before is not None and before[0] is pod else (pod, self._work(pod, given))
        return tuple(result for _, result in self._known.values())
