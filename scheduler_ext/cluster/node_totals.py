"""Sums of what pods request of nodes, against their totals: CPU and memory, and all as kubelet counts at admission.

Kubelet knows nothing of single GPUs. For a plain pod it counts no more than is charged to GPUs here, so beside plain
pods every pod that fits is admitted. Other pods differ. 150 percent of cores are charged as 100. A percentage beside an
amount of memory is not charged, and neither is what containers without GPUs name. Where such a pod is, kubelet's own
sums decide too.

Sums of whole GPUs and percentages count the smallest GPU that was known when the pod was made. On a smaller one, which
came later, kubelet counts more than is charged.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from proto.annotations.keys import DEVICES_ALLOCATED, RESOURCE_CORES_SUM, RESOURCE_MEMORY_SUM, SUMS
from proto.devices import Device
from proto.kubernetes.objects import Container, Node, Pod
from proto.kubernetes.requests import NO_HOST, HostAmount, host_amount
from proto.kubernetes.requests import requested as requested_of
from proto.quantity import QuantityError, integer_quantity
from scheduler_ext.cluster.records import NO_TOTALS, KubeletTotals, PodRecord
from scheduler_ext.requests import (
    RequestError,
    RequestSettings,
    ResourceNames,
    device_filter,
    gpu_count,
    pod_key,
    read_needs,
)

_Sizes = frozenset[tuple[str, int]]
"""The types of a node's GPUs, and their MiB."""


def totals_of(pod: Pod, settings: RequestSettings) -> KubeletTotals:
    """Returns the requests of a pod for the memory and cores of GPUs; `NO_TOTALS` for an ended pod."""
    names = settings.names
    ours = (names.memory, names.memory_percentage, names.cores, *SUMS)
    naming = [each for each in pod.all_containers if not _asked(each).keys().isdisjoint(ours)]
    if not naming or pod.has_ended:
        return NO_TOTALS
    named = {name for each in naming for name in _asked(each)}
    amounts = {name: requested_of(pod, name) for name in ours if name in named}
    is_charged = not pod.spec.node_name or DEVICES_ALLOCATED in pod.metadata.annotations
    plain = is_charged and all(_is_plain(each, names) for each in naming)
    gpu_mib: int | None = 0 if named.isdisjoint(SUMS) else _counted_gpu(naming, settings)
    return KubeletTotals(
        {name: amount for name, amount in amounts.items() if amount}, plain and gpu_mib is not None, gpu_mib or 0
    )


def _counted_gpu(naming: Sequence[Container], settings: RequestSettings) -> int | None:
    """Returns the MiB of the smallest GPU on which no container's sum exceeds what is charged; None without one."""
    least = 0
    try:
        needs = read_needs(naming, settings)
        sums = [[integer_quantity(_asked(each).get(name, 0)) for name in SUMS] for each in naming]
    except (RequestError, QuantityError):
        return None
    for need, (memory_mib, cores) in zip(needs, sums, strict=True):
        if not (memory_mib or cores):
            continue
        if need is None or cores > need.count * need.reserved_cores:
            return None
        of_each = -(-memory_mib // need.count)
        if need.is_relative:
            least = max(least, -(-of_each * 100 // (need.memory_percent or 1)))
        elif of_each > need.memory_mib:
            return None
    return least


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


@dataclass(slots=True)
class KubeletSums:
    """The requests of bound pods and reservations, by node."""

    settings: RequestSettings
    _by_node: dict[str, dict[str, KubeletTotals]] = field(default_factory=dict)
    _totals: dict[str, Mapping[str, int]] = field(default_factory=dict)
    _short: set[str] = field(default_factory=set)
    """Nodes whose totals are below what their GPUs have."""
    _odd: dict[str, set[str]] = field(default_factory=dict)
    """The pods of a node for which kubelet counts more than is charged."""
    _sizes: dict[str, _Sizes] = field(default_factory=dict)
    _with_sizes: dict[_Sizes, set[str]] = field(default_factory=dict)
    """The nodes that have GPUs of these types and sizes."""

    def apply(self, node: Node, devices: Sequence[Device]) -> None:
        """Records the totals that the node's kubelet may give out. A resource without a total is not limited."""
        name, amounts, names = node.metadata.name, node.status.allocatable, self.settings.names
        memory_mib, cores = sum(device.memory_mib for device in devices), sum(device.cores for device in devices)
        has = {
            names.memory: memory_mib,
            names.memory_percentage: 100 * len(devices),
            names.cores: cores,
            RESOURCE_MEMORY_SUM: memory_mib,
            RESOURCE_CORES_SUM: cores,
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
        sizes = frozenset((device.type, device.memory_mib) for device in devices)
        if sizes != self._sizes.get(name):
            self._forget_sizes(name)
            self._sizes[name] = sizes
            self._with_sizes.setdefault(sizes, set()).add(name)
            self._set_odd(
                name, (uid for uid, totals in self._by_node.get(name, {}).items() if self._is_odd(totals, name))
            )

    def remove(self, node: str) -> None:
        self._totals.pop(node, None)
        self._short.discard(node)
        self._forget_sizes(node)

    def _forget_sizes(self, node: str) -> None:
        sizes = self._sizes.pop(node, None)
        if sizes is not None:
            self._with_sizes[sizes].discard(node)
            if not self._with_sizes[sizes]:
                del self._with_sizes[sizes]

    def _is_odd(self, totals: KubeletTotals, node: str) -> bool:
        return not totals.plain or any(size < totals.gpu_mib for _, size in self._sizes.get(node, ()))

    def _set_odd(self, node: str, uids: Iterable[str]) -> None:
        self._odd.pop(node, None)
        if odd := set(uids):
            self._odd[node] = odd

    def add(self, record: PodRecord) -> None:
        """Counts the pod on each of its nodes."""
        if not record.totals.amounts:
            return
        for node in record.nodes:
            self._by_node.setdefault(node, {})[record.uid] = record.totals
            if self._is_odd(record.totals, node):
                self._odd.setdefault(node, set()).add(record.uid)

    def subtract(self, record: PodRecord) -> None:
        if not record.totals.amounts:
            return
        for node in record.nodes:
            on_node = self._by_node[node]
            on_node.pop(record.uid)
            if record.uid in self._odd.get(node, ()):
                self._set_odd(node, self._odd[node] - {record.uid})
            if not on_node:
                del self._by_node[node]

    def refusing(self, pod: Pod, names: Collection[str], gone: Collection[str] = ()) -> Mapping[str, str]:
        """Returns the nodes whose kubelets would refuse the pod without the pods `gone`, and for each the resource of
        which too little is left.
        """
        asked, victims, gone = totals_of(pod, self.settings), bool(gone), {pod_key(pod), *gone}
        if not asked.amounts:
            return {}
        looked_at = {*self._odd, *self._short, *self._with_smaller(pod, asked.gpu_mib)} if asked.plain else names
        # The daemon raises the Node's sums by what pods held beyond their own sums, once they are gone.
        amounts = {name: amount for name, amount in asked.amounts.items() if not (victims and name in SUMS)}
        found = ((node, self._exceeded(amounts, gone, node)) for node in looked_at)
        return {node: resource for node, resource in found if resource}

    def _with_smaller(self, pod: Pod, gpu_mib: int) -> Iterable[str]:
        """Returns the nodes that have a smaller GPU of a type that the pod allows."""
        if not gpu_mib:
            return ()
        allowed = device_filter(pod.metadata.annotations)
        found = (
            nodes
            for sizes, nodes in self._with_sizes.items()
            if any(size < gpu_mib and allowed.allows_type(model) for model, size in sizes)
        )
        return chain.from_iterable(found)

    def _exceeded(self, asked: Mapping[str, int], gone: Collection[str], node: str) -> str:
        """Returns the first resource that is too scarce on the node; empty if kubelet would admit the pod."""
        totals = self._totals.get(node, {})
        others = [each for uid, each in self._by_node.get(node, {}).items() if uid not in gone]
        for resource, amount in asked.items():
            requested = sum(each.amounts.get(resource, 0) for each in others)
            if resource in totals and requested + amount > totals[resource]:
                return resource
        return ""


def _amount(value: str | float) -> int:
    """Returns 0 for an unreadable amount, because kubelet then admits nothing."""
    try:
        return integer_quantity(value)
    except QuantityError:
        return 0


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
