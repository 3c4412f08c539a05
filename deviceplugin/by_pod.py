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
        self._pods: Mapping[str, Pod] = {}
        self._known: dict[str, T] = {}
        self._results: tuple[T, ...] = ()

    def of(self, pods: Mapping[str, Pod], given: G) -> tuple[T, ...]:
        """By pod, in order. `pods` by UID, never changed in place; those that are gone are forgotten."""
        if given != self._given:
            self._given, self._pods, self._known, self._results = given, {}, {}, ()
        before = self._pods
        if pods is before:
            return self._results
        found = {uid: self._work(pod, given) for uid, pod in pods.items() if before.get(uid) is not pod}
        known = self._known | found
        # Those that stay keep their place, and those that come are the last, in hardly any other way.
        self._pods, self._known = pods, known if list(known) == list(pods) else {uid: known[uid] for uid in pods}
        self._results = tuple(self._known.values())
        return self._results
