"""Pods that wait: for a node, for others to be evicted, and running ones for other GPU memory."""

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from proto.annotations.memory_resize import ENDED, answer_in, wish_in
from proto.kubernetes.objects import Pod
from scheduler_ext.requests import GpuRequest, pod_key

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

    def __len__(self) -> int:
        return len(self._pods)

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

    def remove(self, uid: str) -> None:
        """Drops a pod that got its GPUs, or is gone."""
        self._pods.pop(uid, None)

    def due(self, now: float) -> Sequence[QueuedPod]:
        """Returns the pods to try, in this order: higher priority first, as in kube-scheduler; then fewer requeues
        without result; then the longest wait. So pods that cannot fit for another reason, however many, leave the
        others their turn. Those whose last refusal is long ago are dropped.
        """
        self._pods = {uid: pod for uid, pod in self._pods.items() if now - pod.asked < FORGOTTEN_SECONDS}
        ready = [pod for pod in self._pods.values() if pod.not_before <= now]
        return sorted(ready, key=lambda pod: (-pod.priority, pod.requeues, pod.since))

    def requeued(self, uid: str, now: float) -> None:
        pod = self._pods.get(uid)
        if pod is not None:
            pause = min(FIRST_PAUSE_SECONDS * 2.0 ** min(pod.requeues, 10), LONGEST_PAUSE_SECONDS)
            self._pods[uid] = replace(pod, requeues=pod.requeues + 1, not_before=now + pause)


MOST_PROPOSED = 200
"""Pods whose proposed victims are remembered; kube-scheduler chooses at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nomination:
    """The node where a pod will go. `ours` is true if we evict for it, not kube-scheduler."""

    request: GpuRequest
    priority: int
    node: str
    ours: bool = False


class Nominations:
    """Nominated pods by UID. The ledger has the room that is kept for them."""

    def __init__(self) -> None:
        self._known: dict[str, Nomination] = {}
        """The nominations by pod UID, also those whose time has passed: room is kept once for a nomination."""
        self._proposed: dict[str, Mapping[str, Collection[str]]] = {}
        """The victims proposed to kube-scheduler, by pod and node."""

    def __contains__(self, uid: str) -> bool:
        return uid in self._known or uid in self._proposed

    def of(self, uid: str) -> Nomination | None:
        """Returns the pod's nomination, also when its kept room is gone."""
        return self._known.get(uid)

    def ours(self) -> list[str]:
        """Returns the UIDs of the pods for which we have evicted others."""
        return [uid for uid, known in self._known.items() if known.ours]

    def proposed(self, uid: str, node: str) -> frozenset[str]:
        """Returns the victims proposed to kube-scheduler for the pod on this node."""
        return frozenset(self._proposed.get(uid, {}).get(node, ()))

    def propose(self, uid: str, victims_of: Mapping[str, Collection[str]]) -> None:
        """Records the victims proposed for each node: kube-scheduler takes one of the nodes, and nominates the pod for
        it. Beyond the limit the oldest proposal goes.
        """
        self._proposed.pop(uid, None)
        if len(self._proposed) >= MOST_PROPOSED:
            del self._proposed[next(iter(self._proposed))]
        self._proposed[uid] = victims_of

    def put(self, nomination: Nomination) -> None:
        self._proposed.pop(nomination.request.uid, None)
        self._known[nomination.request.uid] = nomination

    def end(self, uid: str) -> bool:
        """Ends the nomination. Returns whether the pod was nominated."""
        self._proposed.pop(uid, None)
        return self._known.pop(uid, None) is not None

    def is_new(self, pod: Pod) -> bool:
        """Returns whether kube-scheduler nominates the pod for a node, and did not before."""
        known, node = self._known.get(pod_key(pod)), pod.status.nominated_node_name
        return bool(node) and _may_be_nominated(pod) and (known is None or known.node != node)

    def is_over(self, pod: Pod) -> bool:
        """Returns whether the pod no longer needs its room, or kube-scheduler no longer nominates it."""
        known = self._known.get(pod_key(pod))
        return not _may_be_nominated(pod) or (
            not pod.status.nominated_node_name and known is not None and not known.ours
        )

    def without(self, uids: Set[str]) -> Set[str]:
        """Returns the nominated pods that are not among these."""
        return self._known.keys() - uids


def _may_be_nominated(pod: Pod) -> bool:
    return not (pod.spec.node_name or pod.has_ended or pod.metadata.deletion_timestamp)


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
