"""Sums as kubelet counts them at admission: requests of the node's pods, against the Node's totals.

Kubelet knows nothing of single GPUs. For a plain pod it counts no more than is charged to GPUs here, so beside plain
pods every pod that fits is admitted. Other pods differ. 150 percent of cores are charged as 100. A percentage beside an
amount of memory is not charged, and neither is what containers without GPUs name. Where such a pod is, kubelet's own
sums decide too.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from proto.annotations.keys import DEVICES_ALLOCATED
from proto.devices import Device
from proto.kubernetes.objects import Container, Node, Pod
from proto.kubernetes.requests import requested
from proto.quantity import QuantityError, integer_quantity
from scheduler_ext.requests import ResourceNames, gpu_count


@dataclass(frozen=True, slots=True)
class Asked:
    """A pod's requests by resource, as kubelet counts them. `plain` is true if they are no more than what is charged to
    GPUs.
    """

    amounts: Mapping[str, int] = field(default_factory=dict)
    plain: bool = True


NOTHING = Asked()


def asked_by(pod: Pod, names: ResourceNames) -> Asked:
    """Returns the requests of a pod for the memory and cores of GPUs; `NOTHING` for an ended pod."""
    ours = (names.memory, names.memory_percentage, names.cores)
    naming = [each for each in pod.all_containers if not _asked(each).keys().isdisjoint(ours)]
    if not naming or pod.has_ended:
        return NOTHING
    amounts = {name: requested(pod, name) for name in ours}
    is_charged = not pod.spec.node_name or DEVICES_ALLOCATED in pod.metadata.annotations
    plain = is_charged and all(_is_plain(each, names) for each in naming)
    return Asked({name: amount for name, amount in amounts.items() if amount}, plain)


def _is_plain(container: Container, names: ResourceNames) -> bool:
    asked = _asked(container)
    try:
        memory, percent, cores = (
            integer_quantity(asked.get(name, 0)) for name in (names.memory, names.memory_percentage, names.cores)
        )
    except QuantityError:
        return False
    return gpu_count(container, names) > 0 and cores <= 100 and percent <= 100 and not (memory and percent)


def _asked(container: Container) -> Mapping[str, str | int | float]:
    return {**container.resources.limits, **container.resources.requests}


_Key = tuple[str, bool]
"""A pod's UID, and whether it is bound."""


@dataclass(slots=True)
class Bookings:
    """The requests of bound pods and reservations, by node."""

    names: ResourceNames
    _by_node: dict[str, dict[_Key, Asked]] = field(default_factory=dict)
    _nodes: dict[_Key, tuple[str, ...]] = field(default_factory=dict)
    """The nodes on which each counts."""
    _totals: dict[str, Mapping[str, int]] = field(default_factory=dict)
    _short: set[str] = field(default_factory=set)
    """Nodes whose totals are below what their GPUs have."""
    _odd: Counter[str] = field(default_factory=Counter)
    """Number of pods on a node that are not plain."""
    _looked_at: tuple[Pod, Asked] | None = None
    """The pod of the last question, until it is reserved."""

    def tell(self, node: Node, devices: Sequence[Device]) -> None:
        """Records the totals that the node's kubelet may give out. A resource without a total is not limited."""
        name, amounts, names = node.metadata.name, node.status.allocatable, self.names
        has = {
            names.memory: sum(device.memory_mib for device in devices),
            names.memory_percentage: 100 * len(devices),
            names.cores: sum(device.cores for device in devices),
        }
        totals = {each: _amount(amounts[each]) for each in has if each in amounts}
        if totals:
            self._totals[name] = totals
        else:
            self._totals.pop(name, None)
        if any(total < has[each] for each, total in totals.items()):
            self._short.add(name)
        else:
            self._short.discard(name)

    def forget(self, node: str) -> None:
        self._totals.pop(node, None)
        self._short.discard(node)

    def bind(self, uid: str, pod: Pod) -> None:
        """Counts a bound pod on its node. A pod that is not bound counts nowhere."""
        self._put((uid, True), [pod.spec.node_name] if pod.spec.node_name else [], pod)

    def unbind(self, uid: str) -> None:
        self._drop((uid, True))

    def keep_only(self, uids: Collection[str]) -> None:
        """Drops all bound pods except these."""
        for uid, is_bound in [*self._nodes]:
            if is_bound and uid not in uids:
                self.unbind(uid)

    def reserve(self, uid: str, pod: Pod, nodes: Collection[str]) -> None:
        looked_at, self._looked_at = self._looked_at, None
        known = looked_at[1] if looked_at is not None and looked_at[0] is pod else None
        self._put((uid, False), nodes, pod, known)

    def unreserve(self, uid: str) -> None:
        self._drop((uid, False))

    def choose(self, uid: str, node: str) -> None:
        """Keeps the reservation on this node only, if the pod has one there."""
        key = (uid, False)
        asked = self._by_node.get(node, {}).get(key)
        if asked is not None:
            self._drop(key)
            self._add(key, [node], asked)

    def _put(self, key: _Key, nodes: Collection[str], pod: Pod, asked: Asked | None = None) -> None:
        self._drop(key)
        if asked is None:
            asked = asked_by(pod, self.names) if nodes else NOTHING
        if asked.amounts:
            self._add(key, nodes, asked)

    def _add(self, key: _Key, nodes: Collection[str], asked: Asked) -> None:
        self._nodes[key] = tuple(nodes)
        for node in nodes:
            self._by_node.setdefault(node, {})[key] = asked
            if not asked.plain:
                self._odd[node] += 1

    def _drop(self, key: _Key) -> None:
        for node in self._nodes.pop(key, ()):
            booked = self._by_node[node]
            if not booked.pop(key).plain:
                self._odd[node] -= 1
                if not self._odd[node]:
                    del self._odd[node]
            if not booked:
                del self._by_node[node]

    def refusing(self, uid: str, pod: Pod, names: Sequence[str], gone: Collection[str] = ()) -> Mapping[str, str]:
        """Returns the nodes whose kubelets would refuse the pod without the pods `gone`, and for each the resource of
        which too little is left.
        """
        asked, gone = asked_by(pod, self.names), {uid, *gone}
        self._looked_at = pod, asked
        if not asked.amounts:
            return {}
        looked_at = {*self._odd, *self._short} if asked.plain else names
        found = ((node, self._exceeded(asked, gone, node)) for node in looked_at)
        return {node: resource for node, resource in found if resource}

    def _exceeded(self, asked: Asked, gone: Collection[str], node: str) -> str:
        """Returns the first resource of which too little is left on the node; empty if kubelet would admit the pod."""
        totals = self._totals.get(node, {})
        others = [each for key, each in self._by_node.get(node, {}).items() if key[0] not in gone]
        for resource, amount in asked.amounts.items():
            booked = sum(each.amounts.get(resource, 0) for each in others)
            if resource in totals and booked + amount > totals[resource]:
                return resource
        return ""


def _amount(value: str | float) -> int:
    """Returns 0 for an unreadable amount, because kubelet then admits nothing."""
    try:
        return integer_quantity(value)
    except QuantityError:
        return 0
