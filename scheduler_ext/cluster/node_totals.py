"""Sums of what pods request of nodes, against their totals: CPU and memory, and all as kubelet counts at admission."""

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import product

from proto.annotations.keys import RESOURCE_CORES_SUM, RESOURCE_MEMORY_SUM, SUMS
from proto.kubernetes.objects import Node, Pod
from proto.kubernetes.requests import NO_HOST, HostAmount, host_amount
from proto.quantity import readable_quantity
from scheduler_ext.cluster.nodes import Nodes
from scheduler_ext.cluster.records import PodRecord, Records
from scheduler_ext.kubelet_totals import totals_of
from scheduler_ext.requests import RequestSettings, device_filter, pod_key


@dataclass(slots=True)
class KubeletSums:
    """The requests of bound pods and reservations, by node."""

    settings: RequestSettings
    _records: Records
    _nodes: Nodes
    _totals: dict[str, Mapping[str, int]] = field(default_factory=dict)
    _requested: dict[tuple[str, str], int] = field(default_factory=dict)
    """The sums by node and resource, without those that are 0."""
    _stricter: set[str] = field(default_factory=set)
    """Nodes where kubelet may count more than is charged, or may give out less than their GPUs may have."""

    def apply(self, node: Node) -> None:
        """Records the totals that kubelet may give out, of a node with GPUs. A resource without a total is not
        limited.
        """
        if not self._nodes.devices(node.metadata.name):
            self.remove(node.metadata.name)
            return
        names, amounts = self.settings.names, node.status.allocatable
        limited = (names.memory, names.memory_percentage, names.cores, *SUMS)
        # Kubelet admits nothing against an unreadable amount.
        self._totals[node.metadata.name] = {
            each: readable_quantity(amounts[each]) for each in limited if each in amounts
        }
        self._compare(node.metadata.name)

    def remove(self, node: str) -> None:
        self._totals.pop(node, None)
        self._stricter.discard(node)

    def _compare(self, node: str) -> None:
        names, totals, devices = self.settings.names, self._totals.get(node, {}), self._nodes.devices(node)
        memory_mib, cores = sum(device.memory_mib for device in devices), sum(device.cores for device in devices)
        has = {names.memory: memory_mib, names.memory_percentage: 100 * len(devices), names.cores: cores}
        has |= {RESOURCE_MEMORY_SUM: memory_mib, RESOURCE_CORES_SUM: cores}
        is_short = not all(gpu.memory_mib for gpu in devices) or any(
            total < has[each] for each, total in totals.items()
        )
        if is_short or any(self._counts_more(each, node) for each in self._records.on_node(node).values()):
            self._stricter.add(node)
        else:
            self._stricter.discard(node)

    def _counts_more(self, record: PodRecord, node: str) -> bool:
        """Returns whether kubelet counts more for the pod there than is charged."""
        plain, gpu_mib = record.totals.plain, record.totals.gpu_mib
        return not plain or (gpu_mib > 0 and any(each.memory_mib < gpu_mib for each in self._nodes.devices(node)))

    def add(self, record: PodRecord) -> None:
        self._change(record, 1)
        for node in record.nodes if record.totals.amounts else ():
            if node in self._totals and self._counts_more(record, node):
                self._stricter.add(node)

    def subtract(self, record: PodRecord) -> None:
        self._change(record, -1)
        for node in record.nodes if record.totals.amounts else ():
            if node in self._stricter and self._counts_more(record, node):
                self._compare(node)

    def _change(self, record: PodRecord, times: int) -> None:
        for key in product(record.nodes, record.totals.amounts):
            requested = self._requested.get(key, 0) + times * record.totals.amounts[key[1]]
            if requested:
                self._requested[key] = requested
            else:
                del self._requested[key]

    def refusing(self, pod: Pod, names: Collection[str], gone: Collection[str] = ()) -> Mapping[str, str]:
        """Returns the nodes whose kubelets would refuse the pod without the pods `gone`, and for each the resource of
        which too little is left.
        """
        asked, victims, without = totals_of(pod, self.settings), bool(gone), {pod_key(pod), *gone}
        if not asked.amounts:
            return {}
        looked_at = {*self._stricter, *self._with_smaller(pod, asked.gpu_mib)} if asked.plain else names
        # The daemon raises the Node's sums by what pods held beyond their own sums, once they are gone.
        amounts = {name: amount for name, amount in asked.amounts.items() if not (victims and name in SUMS)}
        found = ((node, self._exceeded(amounts, without, node)) for node in looked_at)
        return {node: resource for node, resource in found if resource}

    def _with_smaller(self, pod: Pod, gpu_mib: int) -> Iterable[str]:
        """Returns the nodes that have a smaller GPU of a type that the pod allows."""
        if not gpu_mib:
            return ()
        allowed = device_filter(pod.metadata.annotations)
        if gpu_mib <= self._nodes.sizes.smallest(allowed):
            return ()
        return (
            node.name
            for node in self._nodes.registered()
            if any(device.memory_mib < gpu_mib and allowed.allows_type(device.type) for device in node.devices)
        )

    def _exceeded(self, asked: Mapping[str, int], without: AbstractSet[str], node: str) -> str:
        """Returns the first resource that is too scarce on the node; empty if kubelet would admit the pod."""
        totals, records = self._totals.get(node, {}), self._records.on_node(node)
        uncounted = [records[uid].totals.amounts for uid in records.keys() & without]
        for resource, amount in asked.items():
            others = self._requested.get((node, resource), 0) - sum(each.get(resource, 0) for each in uncounted)
            if resource in totals and others + amount > totals[resource]:
                return resource
        return ""


@dataclass(slots=True)
class HostSums:
    """The CPU and memory that pods request of each node, beside its allocatable."""

    _totals: dict[str, HostAmount] = field(default_factory=dict)
    _requested: dict[str, HostAmount] = field(default_factory=dict)
    """The sum of the pods' requests on each node; a node without requests has no entry."""
    _changed: set[str] = field(default_factory=set)

    def apply(self, node: Node) -> None:
        """Records the allocatable CPU and memory of the node. Nothing is known of a node that does not state them."""
        name, total = node.metadata.name, host_amount(node.status.allocatable)
        if total == NO_HOST:
            self.remove(name)
        elif self._totals.get(name) != total:
            self._totals[name] = total
            self._changed.add(name)

    def remove(self, node: str) -> None:
        if self._totals.pop(node, None) is not None:
            self._changed.add(node)

    def add(self, record: PodRecord) -> None:
        self._change(record, record.host)

    def subtract(self, record: PodRecord) -> None:
        self._change(record, NO_HOST.minus(record.host))

    def _change(self, record: PodRecord, more: HostAmount) -> None:
        for node in record.nodes if more != NO_HOST else ():
            requested = self._requested.get(node, NO_HOST).plus(more)
            if requested == NO_HOST:
                del self._requested[node]
            else:
                self._requested[node] = requested
            if node in self._totals:
                self._changed.add(node)

    def left(self, node: str, without: PodRecord | None = None) -> HostAmount | None:
        """Returns the CPU and memory left on the node; None if its allocatable is unknown. The request of the pod
        `without` does not count.

        The amount is below 0 where the pods request more than there is.
        """
        total = self._totals.get(node)
        if total is None:
            return None
        requested = self._requested.get(node)
        left = total if requested is None else total.minus(requested)
        return left.plus(without.host) if without is not None and node in without.nodes else left

    def is_too_small(self, node: str, amount: HostAmount) -> bool:
        """Returns whether the node's allocatable CPU or memory is less than this; False where it is unknown."""
        total = self._totals.get(node)
        return total is not None and (total.cpu_milli < amount.cpu_milli or total.memory_mib < amount.memory_mib)

    def take_changed(self) -> set[str]:
        """Returns the nodes where the rest has changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed
