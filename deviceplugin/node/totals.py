"""The Node's totals of each resource that pods name beside GPUs.

Without these, the Node has none of them. kube-scheduler and kubelet overlook what a Node lacks only as long as nothing
makes them look: a DeviceClass for `nvidia.com/gpu` does, and so do quotas, autoscalers and people.
"""

from collections.abc import Iterable, Mapping, Sequence

from deviceplugin.settings import TotalNames
from proto.devices import Device
from proto.kubernetes.objects import Node, Pod
from proto.kubernetes.requests import requested

PRIORITY_TOTAL = 2**31 - 1
"""A task priority is no amount, but kubelet adds those of all pods up: more than any sum of them."""


def node_totals(names: TotalNames, devices: Sequence[Device], requests: Iterable[tuple[int, ...]]) -> Mapping[str, int]:
    """Returns totals by resource name: MiB, percent of a GPU's memory and of its cores; as registered, with scaling.

    Unhealthy GPUs count, and no total is below what the pods of the node request: kubelet judges running pods
    again when it restarts, and would end those that no longer fit. `requests` has the order of the names.
    """
    none = requested_totals(Pod(), names)
    needed = dict(zip(names, map(sum, zip(none, *requests, strict=True)), strict=True))
    totals = {
        names.memory: sum(device.memory_mib for device in devices),
        names.memory_percentage: 100 * len(devices),
        names.cores: sum(device.cores for device in devices),
        names.priority: PRIORITY_TOTAL,
    }
    return {name: max(total, needed[name]) for name, total in totals.items()}


def requested_totals(pod: Pod, names: TotalNames) -> tuple[int, ...]:
    """Returns how much the pod requests of each, in the order of the names."""
    return tuple(requested(pod, name) for name in names)


def present_totals(node: Node, names: Iterable[str]) -> tuple[str, ...]:
    """Returns the names among these that the Node has, also with an amount of 0."""
    return tuple(name for name in names if name in node.status.capacity or name in node.status.allocatable)
