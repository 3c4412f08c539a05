"""Counts CPU and memory left on each node: its allocatable, minus requests of bound pods and reservations.

Pods without GPUs count too: a GPU on a node without CPU is stranded.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from proto.kubernetes.objects import Node, Pod
from proto.kubernetes.requests import NO_HOST, HostAmount, host_amount, host_requested

_Asked = tuple[tuple[str, ...], HostAmount]
"""The nodes where a pod counts, and its request on each."""
_NOWHERE: _Asked = (), NO_HOST


@dataclass(slots=True)
class Hosts:
    """Sums that each event updates."""

    _totals: dict[str, HostAmount] = field(default_factory=dict)
    _booked: dict[str, HostAmount] = field(default_factory=dict)
    """The sum of the pods' requests on each node; a node without requests has no entry."""
    _bound: dict[str, _Asked] = field(default_factory=dict)
    _reserved: dict[str, _Asked] = field(default_factory=dict)
    _changed: set[str] = field(default_factory=set)

    def tell(self, node: Node) -> None:
        """Records the allocatable CPU and memory of the node. Nothing is known of a node that does not state them."""
        name, total = node.metadata.name, host_amount(node.status.allocatable)
        if total == NO_HOST:
            self.forget(name)
        elif self._totals.get(name) != total:
            self._totals[name] = total
            self._changed.add(name)

    def forget(self, node: str) -> None:
        if self._totals.pop(node, None) is not None:
            self._changed.add(node)

    def bind(self, uid: str, pod: Pod) -> None:
        """Counts a bound pod on its node. A pod that is not bound counts nowhere."""
        node = pod.spec.node_name
        self._put(self._bound, uid, _on_one_node(node, host_requested(pod)) if node else _NOWHERE)

    def unbind(self, uid: str) -> None:
        self._put(self._bound, uid, _NOWHERE)

    def keep_only(self, uids: Collection[str]) -> None:
        """Drops all bound pods except these."""
        for uid in [uid for uid in self._bound if uid not in uids]:
            self.unbind(uid)

    def reserve(self, uid: str, pod: Pod, nodes: Iterable[str]) -> None:
        """Counts the pod on each of the nodes, until `choose` names one."""
        self._put(self._reserved, uid, (tuple(nodes), host_requested(pod)))

    def unreserve(self, uid: str) -> None:
        self._put(self._reserved, uid, _NOWHERE)

    def choose(self, uid: str, node: str) -> None:
        """Keeps the reservation on this node only, if the pod has one there."""
        nodes, amount = self._reserved.get(uid, _NOWHERE)
        if node in nodes:
            self._put(self._reserved, uid, ((node,), amount))

    def left(self, node: str, without: str = "") -> HostAmount | None:
        """Returns the CPU and memory left on the node; None if its allocatable is unknown. The request of the pod
        `without` does not count.

        The amount is below 0 where the pods request more than there is.
        """
        total = self._totals.get(node)
        if total is None:
            return None
        booked = self._booked.get(node)
        left = total if booked is None else total.minus(booked)
        for pods in (self._bound, self._reserved) if without else ():
            nodes, amount = pods.get(without, _NOWHERE)
            left = left.plus(amount) if node in nodes else left
        return left

    def take_changed(self) -> set[str]:
        """Returns the nodes where the rest has changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def _put(self, pods: dict[str, _Asked], uid: str, asked: _Asked) -> None:
        if asked[1] == NO_HOST:
            asked = _NOWHERE
        before = pods.pop(uid, _NOWHERE)
        if asked is not _NOWHERE:
            pods[uid] = asked
        if asked != before:
            for node in before[0]:
                self._add(node, NO_HOST.minus(before[1]))
            for node in asked[0]:
                self._add(node, asked[1])

    def _add(self, node: str, amount: HostAmount) -> None:
        booked = self._booked.get(node, NO_HOST).plus(amount)
        if booked == NO_HOST:
            del self._booked[node]
        else:
            self._booked[node] = booked
        if node in self._totals:
            self._changed.add(node)


# One object for all pods of a node with the same request: there are many of them.
@lru_cache(maxsize=65_536)
def _on_one_node(node: str, amount: HostAmount) -> _Asked:
    return (node,), amount
