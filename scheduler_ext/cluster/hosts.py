"""CPU and memory that is left of each node: of its allocatable what no bound pod and no reservation asks for.

Pods without GPUs count too: a GPU on a node without CPU is stranded.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from proto.kubernetes.objects import Node, Pod
from proto.kubernetes.requests import NO_HOST, HostAmount, host_amount, host_requested

_Key = tuple[str, bool]
"""A pod's UID, and whether it is bound."""


@dataclass(slots=True)
class Hosts:
    """Sums, kept up to date event by event."""

    _totals: dict[str, HostAmount] = field(default_factory=dict)
    _booked: dict[str, HostAmount] = field(default_factory=dict)
    """By node; of a node on which nothing is asked for there is no entry."""
    _pods: dict[_Key, tuple[tuple[str, ...], HostAmount]] = field(default_factory=dict)
    """Where each asks for how much."""
    _changed: set[str] = field(default_factory=set)

    def tell(self, node: Node) -> None:
        """What the node has; nothing is known of one that does not say."""
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
        """Nothing of a pod that is not bound."""
        amount = host_requested(pod) if pod.spec.node_name else NO_HOST
        self._put((uid, True), (pod.spec.node_name,), amount)

    def unbind(self, uid: str) -> None:
        self._put((uid, True), (), NO_HOST)

    def keep_only(self, uids: Collection[str]) -> None:
        """No other pod is bound."""
        for uid, is_bound in [*self._pods]:
            if is_bound and uid not in uids:
                self.unbind(uid)

    def reserve(self, uid: str, pod: Pod, nodes: Iterable[str]) -> None:
        """On each of the nodes, until `choose` says which one it is."""
        self._put((uid, False), tuple(nodes), host_requested(pod))

    def unreserve(self, uid: str) -> None:
        self._put((uid, False), (), NO_HOST)

    def choose(self, uid: str, node: str) -> None:
        """Of its nodes the pod keeps one."""
        nodes, amount = self._pods.get((uid, False), ((), NO_HOST))
        if node in nodes:
            self._put((uid, False), (node,), amount)

    def left(self, node: str, without: str = "") -> HostAmount | None:
        """None of a node whose allocatable is not known; what the pod `without` asks for does not count.

        It is below 0 where the pods ask for more than there is.
        """
        total = self._totals.get(node)
        if total is None:
            return None
        left = total.minus(self._booked.get(node, NO_HOST))
        for key in ((without, True), (without, False)) if without else ():
            nodes, amount = self._pods.get(key, ((), NO_HOST))
            left = left.plus(amount) if node in nodes else left
        return left

    def take_changed(self) -> set[str]:
        """Nodes of which more or less is left than at the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def _put(self, key: _Key, nodes: tuple[str, ...], amount: HostAmount) -> None:
        before = self._pods.get(key)
        if before is not None and before == (nodes, amount):
            return
        if before is not None:
            del self._pods[key]
            for node in before[0]:
                self._add(node, NO_HOST.minus(before[1]))
        if nodes and amount != NO_HOST:
            self._pods[key] = nodes, amount
            for node in nodes:
                self._add(node, amount)

    def _add(self, node: str, amount: HostAmount) -> None:
        booked = self._booked.get(node, NO_HOST).plus(amount)
        if booked == NO_HOST:
            del self._booked[node]
        else:
            self._booked[node] = booked
        if node in self._totals:
            self._changed.add(node)
