"""Pods for which others are evicted, and the nodes where they will go."""

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass

from proto.kubernetes.objects import Pod
from scheduler_ext.requests import GpuRequest, pod_key

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
