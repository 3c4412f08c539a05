"""Counts CPU and memory left on each node: its allocatable, minus requests of bound pods and reservations.

Pods without GPUs count too: a GPU on a node without CPU is stranded.
"""

from dataclasses import dataclass, field

from proto.kubernetes.objects import Node
from proto.kubernetes.requests import NO_HOST, HostAmount, host_amount
from scheduler_ext.cluster.records import PodRecord


@dataclass(slots=True)
class Hosts:
    """Sums that each record updates."""

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
        """Counts the pod on each of its nodes."""
        if record.host != NO_HOST:
            for node in record.nodes:
                self._add(node, record.host)

    def subtract(self, record: PodRecord) -> None:
        if record.host != NO_HOST:
            for node in record.nodes:
                self._add(node, NO_HOST.minus(record.host))

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

    def _add(self, node: str, amount: HostAmount) -> None:
        requested = self._requested.get(node, NO_HOST).plus(amount)
        if requested == NO_HOST:
            self._requested.pop(node, None)
        else:
            self._requested[node] = requested
        if node in self._totals:
            self._changed.add(node)
