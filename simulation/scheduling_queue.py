"""The work of kube-scheduler before and after its extender: order, back-off, messages (pure)."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

JsonObject = dict[str, Any]
FIRST_BACKOFF_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 10.0


DEFAULT_SCHEDULER = "default-scheduler"


def is_waiting(pod: JsonObject, scheduler_names: Collection[str]) -> bool:
    """Returns whether the scheduler of these names has to find a node for the pod."""
    spec, phase = pod["spec"], (pod.get("status") or {}).get("phase", "Pending")
    mine = spec.get("schedulerName", DEFAULT_SCHEDULER) in scheduler_names
    free = not spec.get("nodeName") and not spec.get("schedulingGates")
    return mine and free and phase == "Pending" and not pod["metadata"].get("deletionTimestamp")


def order(pod: JsonObject) -> tuple[int, str, int]:
    """Sort key: higher priority first, then the older pod (by its version within one second)."""
    metadata = pod["metadata"]
    version = str(metadata.get("resourceVersion", ""))
    created = metadata.get("creationTimestamp") or ""
    return -int(pod["spec"].get("priority") or 0), created, int(version) if version.isdigit() else 0


def mentions_managed_resource(pod: JsonObject, managed: Collection[str]) -> bool:
    """Returns whether a container requests a managed resource: only then the extender is called."""
    containers = [*(pod["spec"].get("containers") or []), *(pod["spec"].get("initContainers") or [])]
    resources = [container.get("resources") or {} for container in containers]
    return any(key in managed for one in resources for part in ("limits", "requests") for key in one.get(part) or {})


def passed_nodes(reply: Mapping[str, Any], offered: Collection[str]) -> tuple[list[str], dict[str, str]]:
    """Returns the nodes that passed and the reasons of the others. Raises ValueError for a reply that is an error."""
    if problem := reply.get("Error"):
        raise ValueError(str(problem))
    names = list(reply.get("NodeNames") or [])
    for name in names:
        if name not in offered:
            raise ValueError(f"extender filter result contains node {name!r} that was not in the request")
    refused = {**(reply.get("FailedNodes") or {}), **(reply.get("FailedAndUnresolvableNodes") or {})}
    return names, {str(node): str(reason) for node, reason in refused.items()}


def unschedulable_message(nodes: int, reasons: Iterable[str]) -> str:
    """Returns kube-scheduler's sentence: `0/4 nodes are available: 1 node(s) were unschedulable, 3 …`."""
    if not nodes:
        return "no nodes available to schedule pods"
    counted = sorted(f"{count} {reason}" for reason, count in Counter(reasons).items())
    detail = f": {', '.join(counted)}" if counted else ""
    return f"0/{nodes} nodes are available{detail}."


@dataclass(slots=True)
class QueueBackoff:
    """The time at which each pod may be tried again, by its uid, in monotonic seconds."""

    _attempts: dict[str, int] = field(default_factory=dict)
    _until: dict[str, float] = field(default_factory=dict)
    _parked: set[str] = field(default_factory=set)

    def failed(self, uid: str, now: float, *, park: bool) -> None:
        """Counts a failed attempt; a parked pod waits for a change of the cluster besides."""
        attempts = self._attempts.get(uid, 0)
        self._attempts[uid] = attempts + 1
        self._until[uid] = now + min(FIRST_BACKOFF_SECONDS * 2.0**attempts, LONGEST_BACKOFF_SECONDS)
        if park:
            self._parked.add(uid)

    def cluster_changed(self) -> None:
        self._parked.clear()

    def forget(self, uid: str) -> None:
        self._attempts.pop(uid, None)
        self._until.pop(uid, None)
        self._parked.discard(uid)

    def is_due(self, uid: str, now: float) -> bool:
        return uid not in self._parked and self._until.get(uid, 0.0) <= now

    def next_due(self, uids: Iterable[str]) -> float | None:
        """Returns the earliest moment at which one of these pods may be tried, None if all are parked."""
        return min((self._until.get(uid, 0.0) for uid in uids if uid not in self._parked), default=None)
