"""Knows which nodes give out GPUs, and how much of each GPU is used: the sum of what pods hold there."""

from collections.abc import Collection, Container, Mapping, Set
from dataclasses import dataclass, field

from proto.devices import DeviceUUID
from proto.kubernetes.objects import Node
from scheduler_ext.cluster.accounting import NOTHING, Footprint
from scheduler_ext.cluster.alone import NodeAlone
from scheduler_ext.cluster.holdings import Holding
from scheduler_ext.cluster.kept import KeptRooms
from scheduler_ext.cluster.quotas import Quotas
from scheduler_ext.cluster.registered import UNREGISTERED, RegisteredNode, Unregistered, read_node
from scheduler_ext.cluster.snapshot import NodeUsage
from scheduler_ext.cluster.usage import usage_of


@dataclass(slots=True)
class Nodes:
    """Nodes and their usage. Each change marks a node. Only marked nodes are summed up again, at the next read.

    Room in `kept` counts beside what pods hold, except for pods in `reserved`.
    """

    _kept: KeptRooms
    _reserved: Container[str]
    _registered: dict[str, RegisteredNode] = field(default_factory=dict)
    _unregistered: dict[str, str] = field(default_factory=dict)
    _malformed: set[str] = field(default_factory=set)
    _held: dict[str, dict[str, Holding]] = field(default_factory=dict)
    """The holdings by node and pod."""
    _used: dict[str, dict[DeviceUUID, Footprint]] = field(default_factory=dict)
    _usages: dict[str, NodeUsage] = field(default_factory=dict)
    _outdated: set[str] = field(default_factory=set)
    """Nodes whose entry in `_usages` must be rebuilt."""
    _changed: set[str] = field(default_factory=set)
    """Nodes that `take_changed` has not returned yet."""

    def apply(self, node: Node, count_name: str) -> RegisteredNode | None:
        """Adds or updates a node. Returns None for one that gives out no GPU."""
        name = node.metadata.name
        try:
            registered = read_node(node, count_name)
        except Unregistered as refusal:
            self.remove(name)
            self._unregistered[name] = refusal.reason
            if refusal.malformed:
                self._malformed.add(name)
            return None
        self._unregistered.pop(name, None)
        self._malformed.discard(name)
        if self._registered.get(name) != registered:
            self._registered[name] = registered
            self.touch(name)
        return registered

    def remove(self, name: str) -> None:
        """Removes a node. Its holdings stay, because the node may come back."""
        if self._registered.pop(name, None) is not None:
            self._changed.add(name)
        self._unregistered.pop(name, None)
        self._malformed.discard(name)
        self._usages.pop(name, None)
        self._outdated.discard(name)

    def add(self, uid: str, holding: Holding) -> None:
        """Adds the pod's holding to its node."""
        used = self._used.setdefault(holding.node, {})
        for device, footprint in holding.footprints.items():
            used[device] = used[device] + footprint if device in used else footprint
        self._held.setdefault(holding.node, {})[uid] = holding
        self._touch_with_kept(uid, holding.node)

    def subtract(self, uid: str, holding: Holding) -> None:
        """Takes the holding from its node. Nothing stays of a node without holdings: most names never come back."""
        used, held = self._used[holding.node], self._held[holding.node]
        for device, footprint in holding.footprints.items():
            left = used[device] - footprint
            if left == NOTHING:
                del used[device]
            else:
                used[device] = left
        del held[uid]
        if not held:
            del self._used[holding.node], self._held[holding.node]
        self._touch_with_kept(uid, holding.node)

    def _touch_with_kept(self, uid: str, node: str) -> None:
        """Marks the nodes of the pod: whether room kept for it counts depends on what it holds."""
        self.touch(node)
        room = self._kept.get(uid)
        if room is not None:
            self.touch(room.node)

    def touch(self, name: str) -> None:
        """Marks a registered node, so that its usage is computed again."""
        if name in self._registered:
            self._outdated.add(name)
            self._changed.add(name)

    def take_changed(self) -> set[str]:
        """Returns the nodes that were added, removed or changed in any way since the last call."""
        self._rebuild()
        changed, self._changed = self._changed, set()
        return changed

    def usages(self) -> Mapping[str, NodeUsage]:
        """Returns the usage of all registered nodes; the next event changes it."""
        self._rebuild()
        return self._usages

    def alone(self, name: str, quotas: Quotas) -> NodeAlone | None:
        """Returns the node as it is now; None for one that is not registered."""
        registered = self._registered.get(name)
        if registered is None:
            return None
        return NodeAlone(
            node=registered,
            used=dict(self._used.get(name, {})),
            held=dict(self._held.get(name, {})),
            kept=self._kept.on(name, without=self._reserved),
            quotas=quotas,
        )

    def registered(self) -> Collection[RegisteredNode]:
        return self._registered.values()

    def gpus(self, name: str) -> frozenset[DeviceUUID]:
        """Returns the GPUs of a node; none of one that is not registered."""
        registered = self._registered.get(name)
        return frozenset() if registered is None else frozenset(device.uuid for device in registered.devices)

    def names(self) -> Set[str]:
        """Returns the names of all nodes, with GPUs or without."""
        return self._registered.keys() | self._unregistered.keys()

    def unregistered(self) -> Mapping[str, str]:
        """Returns for each node without GPUs why it is not registered; the next event changes it."""
        return self._unregistered

    def why_unregistered(self, name: str) -> str:
        return self._unregistered.get(name, UNREGISTERED)

    def problem(self, name: str) -> str:
        """Returns why this node's annotations cannot be read; empty if they can."""
        return self._unregistered[name] if name in self._malformed else ""

    def _rebuild(self) -> None:
        for name in self._outdated:
            kept = [room.holding for room in self._kept.on(name, without=self._reserved).values()]
            held = self._held.get(name, {}).values()
            self._usages[name] = usage_of(self._registered[name], self._used.get(name, {}), held, kept)
        self._outdated.clear()
