"""Pods that fitted on no node: which of them to try again, and when, after room became free."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import inf

from scheduler_ext.requests import GpuRequest

MOST_REMEMBERED = 10_000
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
FORGOTTEN_SECONDS = 900.0
"""kube-scheduler tries a pod again after five minutes at the latest (flushUnschedulablePodsLeftover of its queue). A
pod about which no question came for longer is gone without notice, or waits for something else.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedPod:
    """A pod that was refused. Times are in monotonic seconds. Until `not_before` it is left alone; that pause grows
    with each requeue that brought nothing.
    """

    request: GpuRequest
    priority: int
    since: float
    """The first refusal."""
    asked: float
    """The last one."""
    requeues: int = 0
    not_before: float = 0.0


class PodQueue:
    """Waiting pods by UID. Time is an argument, in monotonic seconds."""

    def __init__(self) -> None:
        self._pods: dict[str, QueuedPod] = {}
        self._first_forgotten = inf
        """No pod is forgotten earlier."""

    def __len__(self) -> int:
        return len(self._pods)

    def longest(self, most: int) -> Sequence[QueuedPod]:
        """Returns the pods that have waited longest, at most `most`."""
        return tuple(islice(self._pods.values(), most))

    def is_due(self, uid: str, now: float) -> bool:
        """Returns whether the pod waits, and was not requeued a moment ago."""
        pod = self._pods.get(uid)
        return pod is not None and pod.not_before <= now

    def refused(self, request: GpuRequest, priority: int, now: float) -> None:
        """Records that the pod fits nowhere now. Beyond `MOST_REMEMBERED` no pod is added: kube-scheduler retries by
        its own timers.
        """
        known = self._pods.get(request.uid)
        if known is not None:
            self._pods[request.uid] = replace(known, request=request, priority=priority, asked=now)
        elif len(self._pods) < MOST_REMEMBERED:
            self._pods[request.uid] = QueuedPod(request=request, priority=priority, since=now, asked=now)
            self._first_forgotten = min(self._first_forgotten, now + FORGOTTEN_SECONDS)

    def settled(self, uid: str) -> None:
        """Drops a pod that got its GPUs, or is gone."""
        self._pods.pop(uid, None)

    def drop_forgotten(self, now: float) -> None:
        """Drops the pods whose last refusal is long ago."""
        if now >= self._first_forgotten:
            self._pods = {uid: pod for uid, pod in self._pods.items() if now - pod.asked < FORGOTTEN_SECONDS}
            self._first_forgotten = min((pod.asked for pod in self._pods.values()), default=inf) + FORGOTTEN_SECONDS

    def due(self, now: float) -> Sequence[QueuedPod]:
        """Returns the pods to try, in this order: higher priority first, as in kube-scheduler; then fewer requeues
        without result; then the longest wait. So pods that cannot fit for another reason, however many, leave the
        others their turn.
        """
        ready = [pod for pod in self._pods.values() if pod.not_before <= now]
        return sorted(ready, key=lambda pod: (-pod.priority, pod.requeues, pod.since))

    def requeued(self, uid: str, now: float) -> None:
        pod = self._pods.get(uid)
        if pod is not None:
            pause = min(FIRST_PAUSE_SECONDS * 2.0 ** min(pod.requeues, 10), LONGEST_PAUSE_SECONDS)
            self._pods[uid] = replace(pod, requeues=pod.requeues + 1, not_before=now + pause)
