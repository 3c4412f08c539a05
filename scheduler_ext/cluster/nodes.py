"""Knows which nodes give out GPUs, and how much of each GPU is used: the sum of what pods hold there."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from proto.devices import MIG_MODE, Device, DeviceUUID
from proto.kubernetes.objects import Node, Toleration
from scheduler_ext.cluster.accounting import NOTHING, FootprintSums
from scheduler_ext.cluster.closed_nodes import SetAsides
from scheduler_ext.cluster.quotas import Quotas
from scheduler_ext.cluster.records import NO_GPUS, GpuPart, PodRecord, Records, RecordState
from scheduler_ext.cluster.registered import UNREGISTERED, RegisteredNode, Unregistered, read_node
from scheduler_ext.cluster.snapshot import NodeUsage
from scheduler_ext.cluster.usage import NodeAlone, usage_of
from scheduler_ext.domains.levels import Domains
from scheduler_ext.requests import DeviceFilter, RequestSettings


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
    """Nodes and their usage. A change marks a node. The next read computes the usage of marked nodes again."""

    _records: Records = field(compare=False)
    _set_asides: SetAsides = field(compare=False)
    _settings: RequestSettings = field(compare=False)
    sizes: GpuSizes = field(default_factory=GpuSizes, compare=False)
    _registered: dict[str, RegisteredNode] = field(default_factory=dict)
    _unregistered: dict[str, str] = field(default_factory=dict)
    _malformed: set[str] = field(default_factory=set)
    _usages: dict[str, NodeUsage] = field(default_factory=dict)
    _used: FootprintSums[DeviceUUID] = field(default_factory=FootprintSums)
    """The sums of what pods hold of each GPU, by node."""
    _special: Counter[str] = field(default_factory=Counter)
    """The parts on each node whose footprints are not all that matters."""
    _outdated: set[str] = field(default_factory=set)
    """Nodes whose entry in `_usages` must be rebuilt."""
    _changed: set[str] = field(default_factory=set)
    """Nodes that `take_changed` has not returned yet."""

    def apply(self, node: Node, unread: str) -> None:
        """Adds or updates a node. `unread` is the reason why another annotation of it cannot be read, or empty."""
        name = node.metadata.name
        try:
            registered = read_node(node, self._settings.names.count, self._settings.topology_levels, unread)
        except Unregistered as refusal:
            self.remove(name)
            self._unregistered[name] = refusal.reason
            if refusal.malformed:
                self._malformed.add(name)
            return
        self._unregistered.pop(name, None)
        self._malformed.discard(name)
        if self._registered.get(name) != registered:
            self._registered[name] = registered
            self.sizes.apply(registered.devices)
            self.touch(name)

    def remove(self, name: str) -> None:
        """Removes a node. What pods hold of it stays, because the node may come back."""
        if self._registered.pop(name, None) is not None:
            self._changed.add(name)
        self._unregistered.pop(name, None)
        self._malformed.discard(name)
        self._usages.pop(name, None)
        self._outdated.discard(name)

    def add(self, record: PodRecord) -> None:
        self._change(record, 1)

    def subtract(self, record: PodRecord) -> None:
        self._change(record, -1)

    def _change(self, record: PodRecord, by: int) -> None:
        """Counts the pod once more or once less on each of its nodes, and marks them."""
        for name, part in _parts(record):
            if _is_special(record, part):
                self._special[name] += by
                if not self._special[name]:
                    del self._special[name]
            if record.state is not RecordState.KEPT:
                for uuid, footprint in part.footprints.items():
                    self._used.change(name, uuid, footprint if by > 0 else NOTHING - footprint)
            self.touch(name)

    def touch(self, *names: str) -> None:
        """Marks registered nodes, so that their usage is computed again."""
        known = [name for name in names if name in self._registered]
        self._outdated.update(known)
        self._changed.update(known)

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
        on_node = [each for each in self._records.on_node(name).values() if each.gpus is not NO_GPUS]
        held = {each.uid: each for each in on_node if each.state is not RecordState.KEPT}
        kept = {each.uid: each for each in on_node if each.state is RecordState.KEPT}
        used = self._used.get(name, {}).copy()
        return NodeAlone(node=registered, used=used, held=held, kept=kept, quotas=quotas)

    def repelling(self, tolerations: Iterable[Toleration]) -> Mapping[str, str]:
        """Returns the registered nodes that pods with these tolerations cannot go to, and why."""
        borne = tuple(tolerations)
        found = ((name, node.repels(borne)) for name, node in self._registered.items() if node.taints)
        return {name: reason for name, reason in found if reason}

    def registered(self) -> Collection[RegisteredNode]:
        return self._registered.values()

    def devices(self, name: str) -> Sequence[Device]:
        """Returns the GPUs of a node; none of one that is not registered."""
        registered = self._registered.get(name)
        return () if registered is None else registered.devices

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
        self.touch(*self._set_asides.take_changed())
        for name in self._outdated:
            node, kept, held = self._registered[name], list[GpuPart](), list[GpuPart]()
            if self._special[name] or any(device.mode == MIG_MODE for device in node.devices):
                for record in self._records.on_node(name).values():
                    (kept if record.state is RecordState.KEPT else held).append(record.on(name))
            usage = usage_of(node, self._used.get(name, {}), held, kept)
            aside = self._set_asides.on(name)
            self._usages[name] = usage if aside is None else replace(usage, set_aside=aside)
        self._outdated.clear()


def _parts(record: PodRecord) -> Iterable[tuple[str, GpuPart]]:
    return ((name, record.on(name)) for name in record.nodes) if record.gpus is not NO_GPUS else ()


def _is_special(record: PodRecord, part: GpuPart) -> bool:
    return record.state is RecordState.KEPT or part.is_special or bool(part.pinned)
