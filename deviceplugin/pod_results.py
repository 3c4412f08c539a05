"""Results that are computed once for each pod, and again only when the pod has changed."""

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from proto.kubernetes.objects import Pod

G = TypeVar("G")
T = TypeVar("T")


class PodResults(Generic[G, T]):
    """Caches `work`, which gets a pod and what else the answer depends on. A changed pod is another object."""

    def __init__(self, work: Callable[[Pod, G], T]) -> None:
        self._work = work
        self._given: G | None = None
        self._pods: Mapping[str, Pod] = {}
        self._known: dict[str, T] = {}
        self._results: tuple[T, ...] = ()

    def of(self, pods: Mapping[str, Pod], given: G) -> tuple[T, ...]:
        """Returns results by pod, in order. `pods` are by UID, never changed in place; deleted ones are forgotten."""
        if given != self._given:
            self._given, self._pods, self._known, self._results = given, {}, {}, ()
        before = self._pods
        if pods is before:
            return self._results
        found = {uid: self._work(pod, given) for uid, pod in pods.items() if before.get(uid) is not pod}
        known = self._known | found
        # Almost always, remaining pods keep their place and new ones come last.
        self._pods, self._known = pods, known if list(known) == list(pods) else {uid: known[uid] for uid in pods}
        self._results = tuple(self._known.values())
        return self._results
