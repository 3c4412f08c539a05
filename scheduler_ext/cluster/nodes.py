"""Knows which nodes give out GPUs, and how much of each GPU is used: the sum of what pods hold there."""

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from proto.devices import Device, DeviceUUID
from proto.kubernetes.objects import Node, Toleration
from scheduler_ext.cluster.accounting import NOTHING, Footprint
from scheduler_ext.cluster.quotas import Quotas
from scheduler_ext.cluster.records import NO_GPUS, GpuPart, PodRecord, Records, RecordState
from scheduler_ext.cluster.registered import UNREGISTERED, RegisteredNode, Unregistered, read_node
from scheduler_ext.cluster.snapshot import NodeUsage, SetAsideNode
from scheduler_ext.cluster.usage import NodeAlone, usage_of
from scheduler_ext.domains.levels import LEVELS, Domains
from scheduler_ext.requests import DeviceFilter


class GpuSizes:
    """The smallest GPU of each type that any node has had since the start. A node that is away comes back, perhaps with
    pods that would be counted with too much; so none is forgotten. Any thread may read it.
    """

    def __init__(self) -> None:
        self._smallest: dict[str, int] = {}

    def apply(self, devices: Sequence[Device]) -> None:
        for device in devices:
            known = self._smallest.get(device.type)
            # A GPU whose memory could not be read is no size.
            if device.memory_mib > 0 and (known is None or device.memory_mib < known):
                self._smallest[device.type] = device.memory_mib

    def smallest(self, wanted: DeviceFilter) -> int:
        """Returns the MiB of the smallest GPU of a type that the filter allows; 0 if there is none."""
        known = self._smallest.copy().items()
        return min((size for model, size in known if wanted.allows_type(model)), default=0)


@dataclass(slots=True)
class Nodes:
    """Nodes and their usage. Each change marks a node. Only marked nodes are summed up again, at the next read."""

    sizes: GpuSizes = field(default_factory=GpuSizes, compare=False)
    _registered: dict[str, RegisteredNode] = field(default_factory=dict)
    _unregistered: dict[str, str] = field(default_factory=dict)
    _malformed: set[str] = field(default_factory=set)
    _tainted: set[str] = field(default_factory=set)
    """Registered nodes that keep some pods away."""
    _held: dict[str, dict[str, GpuPart]] = field(default_factory=dict)
    """The parts that pods hold, by node and UID."""
    _kept: dict[str, dict[str, GpuPart]] = field(default_factory=dict)
    """Room that is kept for pods, by node and UID. It counts beside what is held."""
    _set_aside: dict[str, SetAsideNode] = field(default_factory=dict)
    _used: dict[str, dict[DeviceUUID, Footprint]] = field(default_factory=dict)
    _usages: dict[str, NodeUsage] = field(default_factory=dict)
    _outdated: set[str] = field(default_factory=set)
    """Nodes whose entry in `_usages` must be rebuilt."""
    _changed: set[str] = field(default_factory=set)
    """Nodes that `take_changed` has not returned yet."""

    def apply(self, node: Node, count_name: str, levels: Sequence[str] = LEVELS) -> RegisteredNode | None:
        """Adds or updates a node. Returns None for one that gives out no GPU."""
        name = node.metadata.name
        try:
            registered = read_node(node, count_name, levels)
        except Unregistered as refusal:
            self.remove(name)
            self._unregistered[name] = refusal.reason
            if refusal.malformed:
                self._malformed.add(name)
            return None
        self._unregistered.pop(name, None)
        self._malformed.discard(name)
        (self._tainted.add if registered.taints else self._tainted.discard)(name)
        if self._registered.get(name) != registered:
            self._registered[name] = registered
            self.sizes.apply(registered.devices)
            self._touch(name)
        return registered

    def remove(self, name: str) -> None:
        """Removes a node. What pods hold of it stays, because the node may come back."""
        if self._registered.pop(name, None) is not None:
            self._changed.add(name)
        self._unregistered.pop(name, None)
        self._malformed.discard(name)
        self._tainted.discard(name)
        self._usages.pop(name, None)
        self._outdated.discard(name)

    def add(self, record: PodRecord) -> None:
        """Counts the pod on each of its nodes."""
        if record.gpus is NO_GPUS:
            return
        by_node = self._kept if record.state is RecordState.KEPT else self._held
        for node in record.nodes:
            part = record.on(node)
            by_node.setdefault(node, {})[record.uid] = part
            if by_node is self._held:
                used = self._used.setdefault(node, {})
                for device, footprint in part.footprints.items():
                    used[device] = used[device] + footprint if device in used else footprint
            self._touch(node)

    def subtract(self, record: PodRecord) -> None:
        """Takes the pod from its nodes. Nothing stays of a node without pods: most names never come back."""
        if record.gpus is NO_GPUS:
            return
        by_node = self._kept if record.state is RecordState.KEPT else self._held
        for node in record.nodes:
            del by_node[node][record.uid]
            if by_node is self._held:
                self._free(node, record.on(node))
            if not by_node[node]:
                del by_node[node]
            self._touch(node)

    def _free(self, node: str, part: GpuPart) -> None:
        used = self._used[node]
        for device, footprint in part.footprints.items():
            left = used[device] - footprint
            if left == NOTHING:
                del used[device]
            else:
                used[device] = left
        if not self._held[node]:
            del self._used[node]

    def set_aside(self, name: str, found: SetAsideNode | None) -> None:
        """Shows for which pod the node is set aside; None opens it."""
        if found is None:
            self._set_aside.pop(name, None)
        else:
            self._set_aside[name] = found
        self._touch(name)

    def _touch(self, name: str) -> None:
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

    def usage(self, name: str) -> NodeUsage | None:
        """Returns the usage of a node; None for one that is not registered."""
        return self.usages().get(name)

    def alone(self, name: str, records: Records, quotas: Quotas) -> NodeAlone | None:
        """Returns the node as it is now; None for one that is not registered."""
        registered = self._registered.get(name)
        if registered is None:
            return None
        return NodeAlone(
            node=registered,
            used=dict(self._used.get(name, {})),
            held=records.on_node(name, self._held.get(name, ())),
            kept=records.on_node(name, self._kept.get(name, ())),
            quotas=quotas,
        )

    def repelling(self, tolerations: Iterable[Toleration]) -> Mapping[str, str]:
        """Returns the registered nodes that pods with these tolerations cannot go to, and why."""
        borne = tuple(tolerations)
        found = ((name, self._registered[name].repels(borne)) for name in self._tainted)
        return {name: reason for name, reason in found if reason}

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

    def domains(self, name: str) -> Domains:
        """Returns the domains of a node; none of one that is not registered."""
        return self._registered[name].domains if name in self._registered else {}

    def broken(self) -> Mapping[str, str]:
        """Returns the nodes that should offer GPUs and do not, and why."""
        return {name: why.partition(": ")[2] for name, why in self._unregistered.items() if why != UNREGISTERED}

    def problem(self, name: str) -> str:
        """Returns why an annotation of this node cannot be read; empty if all can."""
        if name in self._registered and (unread := self._registered[name].unread):
            return f"{unread}; without it the node gets pods all the same"
        return self._unregistered[name] if name in self._malformed else ""

    def _rebuild(self) -> None:
        for name in self._outdated:
            held, kept = self._held.get(name, {}).values(), [*self._kept.get(name, {}).values()]
            usage = usage_of(self._registered[name], self._used.get(name, {}), held, kept)
            aside = self._set_aside.get(name)
            self._usages[name] = usage if aside is None else replace(usage, set_aside=aside)
        self._outdated.clear()
