"""Pods that no node had room for: who may be tried again, and when, after room was made."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduler_ext.requests import GpuRequest

MOST_REMEMBERED = 10_000
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingPod:
    """`since` and `not_before` are monotonic seconds; nudged in vain, a pod is left alone for longer each time."""

    request: GpuRequest
    priority: int
    since: float
    nudges: int = 0
    not_before: float = 0.0


class WaitingPods:
    """By UID. Time is an argument, in monotonic seconds."""

    def __init__(self) -> None:
        self._pods: dict[str, WaitingPod] = {}

    def __len__(self) -> int:
        return len(self._pods)

    def refused(self, request: GpuRequest, priority: int, now: float) -> None:
        """The pod fits nowhere now. Beyond `MOST_REMEMBERED` nobody is remembered: kube-scheduler retries by itself."""
        known = self._pods.get(request.uid)
        if known is not None:
            self._pods[request.uid] = replace(known, request=request, priority=priority)
        elif len(self._pods) < MOST_REMEMBERED:
            self._pods[request.uid] = WaitingPod(request=request, priority=priority, since=now)

    def settled(self, uid: str) -> None:
        """The pod got its GPUs, or is gone."""
        self._pods.pop(uid, None)

    def due(self, now: float, most: int) -> Sequence[WaitingPod]:
        """Whom to try, in kube-scheduler's order: higher priority first, then who waits longest."""
        ready = [pod for pod in self._pods.values() if pod.not_before <= now]
        return sorted(ready, key=lambda pod: (-pod.priority, pod.since))[:most]

    def nudged(self, uid: str, now: float) -> None:
        pod = self._pods.get(uid)
        if pod is not None:
            pause = min(FIRST_PAUSE_SECONDS * 2.0 ** min(pod.nudges, 10), LONGEST_PAUSE_SECONDS)
            self._pods[uid] = replace(pod, nudges=pod.nudges + 1, not_before=now + pause)
