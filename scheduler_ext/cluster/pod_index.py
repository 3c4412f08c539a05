"""An index of pods that request GPUs, and of nodes: the few values that are kept of each."""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from math import inf
from sys import intern
from types import MappingProxyType

from msgspec import Struct

from proto.annotations.keys import (
    BIND_PHASE,
    DEVICE_CORDON,
    NODE_ALLOCATION,
    NODE_LIMITS,
    NODE_LOCK,
    NODE_LOCK_UID,
    NODE_OUTLIVING,
    NODE_REGISTER,
    NODE_SIMULATED,
    NODE_UNDECIDED,
    POD_NODE,
)
from proto.annotations.node_allocation import AllocationMode, decode_mode
from proto.annotations.node_lock import decode_lock_uid
from proto.kubernetes.objects import Node, ObjectReference, Pod
from scheduler_ext.requests import ResourceNames


class PodName(Struct, frozen=True, kw_only=True, gc=False):
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def reference(self, uid: str) -> ObjectReference:
        """Returns what events name as their object."""
        return ObjectReference(api_version="v1", kind="Pod", namespace=self.namespace, name=self.name, uid=uid)


class NodeEntry(Struct, frozen=True, kw_only=True, gc=False):
    """`lock` is the annotation's text, empty without one."""

    resource_version: str
    lock: str
    lock_uid: str
    """UID of the pod that holds the lock; empty if the lock has none."""
    by_slots: bool
    """True if its daemon proves the pod of each Allocate itself and so needs no lock."""
    served_by_hami: bool
    """True if its daemon is HAMi's, which does not write how it allocates."""
    offer: int
    """A number that changes when other GPUs are offered."""


class PodEntry(Struct, frozen=True, kw_only=True, gc=False):
    uid: str
    priority: int
    created: str
    """The time of creation as the API server writes it."""
    labels: Mapping[str, str]
    node: str
    nominated: str
    """The node where kube-scheduler has evicted pods for it; empty without one."""
    leaving: bool
    """True once the pod is being deleted."""
    ended: bool
    phase: str
    """The bind phase as written; empty before the first."""
    lasts: float = inf
    """Seconds after which kubelet has ended it; infinite if it has no deadline."""
    started: float = 0.0
    """The time of its start in seconds since 1970; 0 before."""


def node_entry(node: Node) -> NodeEntry:
    """Returns what is kept of a Node. `offer` changes with everything that the node has for pods."""
    annotations = node.metadata.annotations
    lock = annotations.get(NODE_LOCK, "")
    ready = tuple(condition.status for condition in node.status.conditions if condition.type == "Ready")
    keys = (NODE_REGISTER, DEVICE_CORDON, NODE_LIMITS, NODE_UNDECIDED, NODE_OUTLIVING, NODE_SIMULATED)
    offer = (*map(annotations.get, keys), *sorted(node.status.allocatable.items()))
    return NodeEntry(
        resource_version=node.metadata.resource_version,
        lock=lock,
        lock_uid=decode_lock_uid(lock, annotations.get(NODE_LOCK_UID, "")),
        offer=hash((*offer, ready)),
        by_slots=decode_mode(annotations.get(NODE_ALLOCATION)) is AllocationMode.SLOTS,
        served_by_hami=NODE_ALLOCATION not in annotations,
    )


def pod_entry(pod: Pod) -> PodEntry:
    return PodEntry(
        uid=pod.metadata.uid,
        priority=pod.spec.priority or 0,
        created=pod.metadata.creation_timestamp or "",
        labels=pod.metadata.labels,
        node=intern(pod.spec.node_name),
        nominated=intern(pod.status.nominated_node_name),
        leaving=pod.metadata.deletion_timestamp is not None,
        ended=pod.has_ended,
        phase=intern(pod.metadata.annotations.get(BIND_PHASE, "")),
        lasts=pod.spec.lasts,
        started=0.0 if pod.spec.lasts == inf else seconds_of(pod.status.start_time),
    )


def seconds_of(time: str | None) -> float:
    """Returns a time of the API server in seconds since 1970; 0 for one that is missing or cannot be read."""
    try:
        return datetime.fromisoformat(time or "").timestamp()
    except ValueError:
        return 0.0


class PodIndex:
    """Nodes by name, and pods that request GPUs by namespace and name."""

    def __init__(self, names: ResourceNames) -> None:
        self._resource_names = names
        self._nodes: dict[str, NodeEntry] = {}
        self._pods: dict[PodName, PodEntry] = {}
        self._names: dict[str, PodName] = {}
        self._running: dict[str, dict[PodName, PodEntry]] = {}
        """Bound pods that have not ended, by node."""
        self._pending: dict[str, Pod] = {}
        self._held: dict[str, tuple[str, float]] = {}
        """Locks for which a bind gave up waiting, and the time at which each expires, by node."""

    def node(self, name: str) -> NodeEntry | None:
        return self._nodes.get(name)

    def pod(self, name: PodName) -> PodEntry | None:
        return self._pods.get(name)

    def names(self) -> Mapping[str, PodName]:
        """Returns the names of all pods that request GPUs, by UID. The mapping changes with them: copy it for another
        thread.
        """
        return MappingProxyType(self._names)

    def pending(self) -> Mapping[str, Pod]:
        """Returns the pods, by UID, that request GPUs and have neither a node nor an end. The mapping changes."""
        return self._pending

    def running(self, node: str) -> Mapping[PodName, PodEntry]:
        """Returns the pods of the node that request GPUs and have not ended."""
        return self._running.get(node, {})

    def concerns_gpus(self, pod: Pod) -> bool:
        """Returns whether the pod requests GPUs, or has annotations of a GPU scheduler."""
        if POD_NODE in pod.metadata.annotations or BIND_PHASE in pod.metadata.annotations:
            return True
        return self._resource_names.are_requested_by(pod)

    def not_held(self, nodes: Collection[str], now: float) -> Collection[str]:
        """Returns the nodes in their order, without those for whose lock a bind gave up waiting: they are left out
        until the lock changes or expires. `now` is in monotonic seconds.
        """
        if not self._held:
            return nodes
        return [name for name in nodes if not self._is_held(name, now)]

    def hold(self, node: str, lock: str, until: float, now: float) -> None:
        self._held = {name: held for name, held in self._held.items() if self._is_held(name, now)}
        self._held[node] = lock, until

    def _is_held(self, node: str, now: float) -> bool:
        lock, until = self._held.get(node, ("", now))
        known = self._nodes.get(node)
        return now < until and known is not None and known.lock == lock and not known.by_slots

    def replace_nodes(self, nodes: Iterable[Node]) -> None:
        self._nodes = {node.metadata.name: node_entry(node) for node in nodes}

    def apply_node(self, node: Node) -> bool:
        """Replaces the entry of the node. Returns whether it offers other GPUs than before."""
        before, after = self._nodes.get(node.metadata.name), node_entry(node)
        self._nodes[node.metadata.name] = after
        return before is None or before.offer != after.offer

    def remove_node(self, name: str) -> None:
        self._nodes.pop(name, None)

    def replace_pods(self, pods: Iterable[Pod]) -> None:
        self._pods, self._names, self._running, self._pending = {}, {}, {}, {}
        for pod in pods:
            if self.concerns_gpus(pod):
                self._put(pod_name(pod), pod)

    def apply_pod(self, pod: Pod) -> None:
        """Keeps a pod that concerns GPUs."""
        name = pod_name(pod)
        self._drop(name)
        self._put(name, pod)

    def remove_pod(self, pod: Pod) -> None:
        """Drops the pod. A later pod of the same name stays."""
        name = pod_name(pod)
        known = self._pods.get(name)
        if known and known.uid == pod.metadata.uid:
            self._drop(name)

    def _put(self, name: PodName, pod: Pod) -> None:
        entry = pod_entry(pod)
        if not entry.node and not entry.ended and self._resource_names.are_requested_by(pod):
            self._pending[entry.uid] = pod
        self._pods[name] = entry
        self._names[entry.uid] = name
        if entry.node and not entry.ended:
            self._running.setdefault(entry.node, {})[name] = entry

    def _drop(self, name: PodName) -> None:
        known = self._pods.pop(name, None)
        if known is not None:
            self._names.pop(known.uid, None)
            self._pending.pop(known.uid, None)
        if known is not None and known.node in self._running:
            self._running[known.node].pop(name, None)
            if not self._running[known.node]:
                del self._running[known.node]


def pod_name(pod: Pod) -> PodName:
    return PodName(namespace=intern(pod.metadata.namespace), name=pod.metadata.name)
