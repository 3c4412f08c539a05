"""The Node's totals of each resource that pods name beside GPUs, and the sums of what its GPUs have together.

Without these, the Node has none of them. kube-scheduler and kubelet overlook what a Node lacks only as long as nothing
makes them look: a DeviceClass for `nvidia.com/gpu` does, and so do quotas, autoscalers and people.
"""

from collections.abc import Iterable, Mapping, Sequence

from deviceplugin.allocation.decision import Holds, TakenPart
from deviceplugin.settings import TotalNames
from proto.annotations.keys import SUMS
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


def node_sums(
    devices: Sequence[Device], held: Iterable[Holds], requests: Iterable[tuple[int, ...]]
) -> Mapping[str, int]:
    """Returns MiB and percent of cores by resource: what the node's pods request, and what is free besides. A
    program that subtracts the sums of its pods finds what is free. An unhealthy GPU has nothing free.

    The webhook writes the sums of a pod before its GPUs are known. A pod may also come past the webhook, or change its
    size while it runs. Kubelet judges running pods again when it restarts.
    """
    taken: dict[str, TakenPart] = {}
    for each in held:
        for uuid, part in each.items():
            taken[uuid] = taken.get(uuid, TakenPart()) + part
    serving = [(device, taken.get(device.uuid, TakenPart())) for device in devices if device.healthy]
    free = (
        sum(max(0, device.memory_mib - part.memory_mib) for device, part in serving),
        sum(max(0, device.cores - part.cores) for device, part in serving),
    )
    of_pods = map(sum, zip(*requests, strict=True)) if (requests := tuple(requests)) else (0, 0)
    return {name: own + more for name, own, more in zip(SUMS, free, of_pods, strict=True)}


def requested_sums(pod: Pod) -> tuple[int, ...]:
    return tuple(requested(pod, name) for name in SUMS)
