"""What binding needs to know of nodes and pods: a few words each, kept from the watch."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from sys import intern
from weakref import WeakSet

from proto.annotations.bind_phase import BindPhase
from proto.annotations.keys import (
    BIND_PHASE,
    DEVICE_CORDON,
    NODE_ALLOCATION,
    NODE_LIMITS,
    NODE_LOCK,
    NODE_LOCK_UID,
    NODE_OUTLIVING,
    NODE_REGISTER,
    NODE_UNDECIDED,
    POD_NODE,
)
from proto.annotations.node_allocation import AllocationMode, decode_mode
from proto.annotations.node_lock import decode_lock_uid
from proto.kubernetes.objects import Node, Pod
from scheduler_ext.binding.lock import Owner, PodName
from scheduler_ext.requests import ResourceNames


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """`lock` is the annotation's text, empty without one."""

    resource_version: str
    lock: str
    lock_uid: str
    """Of the pod that holds the lock; empty where nobody wrote it down."""
    slots: bool
    """Whether its daemon proves the pod of each Allocate itself and so needs no lock."""
    offer: int
    """Another number as soon as other GPUs are offered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    uid: str
    priority: int
    created: str
    """As the API server writes it."""
    labels: Mapping[str, str]
    node: str
    nominated: str
    """The node where kube-scheduler has evicted pods for it; empty without one."""
    leaving: bool
    """Whether it is being deleted."""
    ended: bool
    phase: str
    """The bind phase as written; empty before the first."""


def node_facts(node: Node) -> NodeFacts:
    """What is kept of a Node; `offer` changes with whatever it has for pods."""
    annotations = node.metadata.annotations
    lock = annotations.get(NODE_LOCK, "")
    ready = tuple(condition.status for condition in node.status.conditions if condition.type == "Ready")
    written = map(annotations.get, (NODE_REGISTER, DEVICE_CORDON, NODE_LIMITS, NODE_UNDECIDED, NODE_OUTLIVING))
    offer = (*written, *sorted(node.status.allocatable.items()))
    return NodeFacts(
        resource_version=node.metadata.resource_version,
        lock=lock,
        lock_uid=decode_lock_uid(lock, annotations.get(NODE_LOCK_UID, "")),
        offer=hash((*offer, ready)),
        slots=decode_mode(annotations.get(NODE_ALLOCATION)) is AllocationMode.SLOTS,
    )


def pod_facts(pod: Pod) -> PodFacts:
    return PodFacts(
        uid=pod.metadata.uid,
        priority=pod.spec.priority or 0,
        created=pod.metadata.creation_timestamp or "",
        labels=pod.metadata.labels,
        node=intern(pod.spec.node_name),
        nominated=intern(pod.status.nominated_node_name),
        leaving=pod.metadata.deletion_timestamp is not None,
        ended=pod.has_ended,
        phase=intern(pod.metadata.annotations.get(BIND_PHASE, "")),
    )


def owner_state(pod: PodFacts | None, node: str) -> Owner:
    """What a lock on `node` that names this pod still means; None for a pod that does not exist."""
    if pod is None or pod.ended:
        return Owner.GONE
    if pod.node and pod.node != node:
        return Owner.ELSEWHERE
    if pod.node and pod.phase in (BindPhase.SUCCESS, BindPhase.FAILED):
        return Owner.SERVED
    return Owner.WAITING


class View:
    """Nodes by name, and the pods that ask for GPUs by namespace and name; wakes whoever waits for a change."""

    def __init__(self, names: ResourceNames | None = None) -> None:
        names = names or ResourceNames()
        self._resources = frozenset({names.count, names.memory, names.memory_percentage, names.cores})
        self._nodes: dict[str, NodeFacts] = {}
        self._pods: dict[PodName, PodFacts] = {}
        self._running: dict[str, dict[PodName, PodFacts]] = {}
        """Bound and not ended, by node."""
        self._watching: dict[str | PodName, WeakSet[asyncio.Event]] = {}
        """Who waits for a change, by the node's or pod's name."""

    def next_change(self, *names: str | PodName | None) -> asyncio.Event:
        """Set at the first change of one of these nodes and pods after this call."""
        event = asyncio.Event()
        for name in names:
            if name is not None:
                self._watching.setdefault(name, WeakSet()).add(event)
        return event

    def _changed(self, *names: str | PodName) -> None:
        for name in names:
            for event in self._watching.pop(name, ()):
                event.set()

    def node(self, name: str) -> NodeFacts | None:
        return self._nodes.get(name)

    def pod(self, name: PodName) -> PodFacts | None:
        return self._pods.get(name)

    def names(self) -> Mapping[str, PodName]:
        """Of every pod that asks for GPUs, by UID."""
        return {facts.uid: name for name, facts in self._pods.items()}

    def running(self, node: str) -> Mapping[PodName, PodFacts]:
        """The pods of the node that ask for GPUs and have not ended."""
        return self._running.get(node, {})

    def replace_nodes(self, nodes: Iterable[Node]) -> None:
        self._nodes = {node.metadata.name: node_facts(node) for node in nodes}
        self._changed(*self._watching)

    def apply_node(self, node: Node) -> None:
        self._nodes[node.metadata.name] = node_facts(node)
        self._changed(node.metadata.name)

    def remove_node(self, name: str) -> None:
        self._nodes.pop(name, None)
        self._changed(name)

    def replace_pods(self, pods: Iterable[Pod]) -> None:
        self._pods, self._running = {}, {}
        for pod in pods:
            if self.concerns_gpus(pod):
                self._put(pod_name(pod), pod_facts(pod))
        self._changed(*self._watching)

    def apply_pod(self, pod: Pod) -> None:
        if self.concerns_gpus(pod):
            self._drop(pod_name(pod))
            self._put(pod_name(pod), pod_facts(pod))
            self._changed(pod_name(pod))

    def _put(self, name: PodName, facts: PodFacts) -> None:
        self._pods[name] = facts
        if facts.node and not facts.ended:
            self._running.setdefault(facts.node, {})[name] = facts

    def _drop(self, name: PodName) -> None:
        known = self._pods.pop(name, None)
        if known is not None and known.node in self._running:
            self._running[known.node].pop(name, None)
            if not self._running[known.node]:
                del self._running[known.node]

    def concerns_gpus(self, pod: Pod) -> bool:
        """Whether the pod asks for GPUs or any scheduler has treated it so."""
        if POD_NODE in pod.metadata.annotations or BIND_PHASE in pod.metadata.annotations:
            return True
        asked = (each.resources for each in pod.all_containers)
        return any(not self._resources.isdisjoint((*each.limits, *each.requests)) for each in asked)

    def remove_pod(self, pod: Pod) -> None:
        """A later pod of the same name stays."""
        known = self._pods.get(pod_name(pod))
        if known and known.uid == pod.metadata.uid:
            self._drop(pod_name(pod))
            self._changed(pod_name(pod))


def pod_name(pod: Pod) -> PodName:
    return PodName(namespace=intern(pod.metadata.namespace), name=pod.metadata.name)
