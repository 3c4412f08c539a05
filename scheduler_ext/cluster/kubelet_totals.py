"""Sums as kubelet counts them at admission: requests of the node's pods, against the Node's totals.

Kubelet knows nothing of single GPUs. For a plain pod it counts no more than is charged to GPUs here, so beside plain
pods every pod that fits is admitted. Other pods differ. 150 percent of cores are charged as 100. A percentage beside an
amount of memory is not charged, and neither is what containers without GPUs name. Where such a pod is, kubelet's own
sums decide too.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from proto.annotations.keys import DEVICES_ALLOCATED, RESOURCE_CORES_SUM, RESOURCE_MEMORY_SUM, SUMS
from proto.devices import Device
from proto.kubernetes.objects import Container, Node, Pod
from proto.kubernetes.requests import requested as requested_of
from proto.quantity import QuantityError, integer_quantity
from scheduler_ext.cluster.records import NO_TOTALS, KubeletTotals, PodRecord
from scheduler_ext.requests import ResourceNames, gpu_count, pod_key


def totals_of(pod: Pod, names: ResourceNames) -> KubeletTotals:
    """Returns the requests of a pod for the memory and cores of GPUs; `NO_TOTALS` for an ended pod."""
    ours = (names.memory, names.memory_percentage, names.cores, *SUMS)
    naming = [each for each in pod.all_containers if not _asked(each).keys().isdisjoint(ours)]
    if not naming or pod.has_ended:
        return NO_TOTALS
    named = {name for each in naming for name in _asked(each)}
    amounts = {name: requested_of(pod, name) for name in ours if name in named}
    is_charged = not pod.spec.node_name or DEVICES_ALLOCATED in pod.metadata.annotations
    plain = is_charged and all(_is_plain(each, names) for each in naming)
    return KubeletTotals({name: amount for name, amount in amounts.items() if amount}, plain)


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

    names: ResourceNames
    _by_node: dict[str, dict[str, KubeletTotals]] = field(default_factory=dict)
    _totals: dict[str, Mapping[str, int]] = field(default_factory=dict)
    _short: set[str] = field(default_factory=set)
    """Nodes whose totals are below what their GPUs have."""
    _odd: Counter[str] = field(default_factory=Counter)
    """Number of pods on a node that are not plain."""
    _last: tuple[Pod, KubeletTotals] | None = None
    """The pod of the last question."""

    def apply(self, node: Node, devices: Sequence[Device]) -> None:
        """Records the totals that the node's kubelet may give out. A resource without a total is not limited."""
        name, amounts, names = node.metadata.name, node.status.allocatable, self.names
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

    def remove(self, node: str) -> None:
        self._totals.pop(node, None)
        self._short.discard(node)

    def totals_of(self, pod: Pod) -> KubeletTotals:
        """Returns the pod's requests. Those of the last question are not counted again."""
        last, self._last = self._last, None
        return last[1] if last is not None and last[0] is pod else totals_of(pod, self.names)

    def add(self, record: PodRecord) -> None:
        """Counts the pod on each of its nodes."""
        if not record.totals.amounts:
            return
        for node in record.nodes:
            self._by_node.setdefault(node, {})[record.uid] = record.totals
            if not record.totals.plain:
                self._odd[node] += 1

    def subtract(self, record: PodRecord) -> None:
        if not record.totals.amounts:
            return
        for node in record.nodes:
            on_node = self._by_node[node]
            if not on_node.pop(record.uid).plain:
                self._odd[node] -= 1
                if not self._odd[node]:
                    del self._odd[node]
            if not on_node:
                del self._by_node[node]

    def refusing(self, pod: Pod, names: Sequence[str], gone: Collection[str] = ()) -> Mapping[str, str]:
        """Returns the nodes whose kubelets would refuse the pod without the pods `gone`, and for each the resource of
        which too little is left.
        """
        asked, victims, gone = totals_of(pod, self.names), bool(gone), {pod_key(pod), *gone}
        self._last = pod, asked
        if not asked.amounts:
            return {}
        looked_at = {*self._odd, *self._short} if asked.plain else names
        # The daemon raises the Node's sums by what pods held beyond their own sums, once they are gone.
        amounts = {name: amount for name, amount in asked.amounts.items() if not (victims and name in SUMS)}
        found = ((node, self._exceeded(amounts, gone, node)) for node in looked_at)
        return {node: resource for node, resource in found if resource}

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
