"""The Node's sums of what its GPUs have together. A program that subtracts the sums of its pods finds what is free.

The webhook writes the sums of a pod before its GPUs are known. A pod may also come past the webhook, or change its size
while it runs. So the Node has what its pods request and what is free besides.
"""

from collections.abc import Iterable, Mapping, Sequence

from deviceplugin.allocation.capacity import Holds, TakenPart
from proto.annotations.keys import RESOURCE_CORES_SUM, RESOURCE_MEMORY_SUM, SUMS
from proto.devices import Device
from proto.kubernetes.objects import Pod
from proto.kubernetes.requests import requested

Sums = tuple[int, ...]
"""MiB and percent of cores."""


def node_sums(devices: Sequence[Device], held: Iterable[Holds], requests: Iterable[Sums]) -> Mapping[str, int]:
    """Returns the sums by resource. An unhealthy GPU has nothing free. No sum is below what the node's pods request, as
    kubelet needs it: it judges running pods again when it restarts.
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
    asked = map(sum, zip(*requests, strict=True)) if (requests := tuple(requests)) else (0, 0)
    return {name: own + more for name, own, more in zip(SUMS, free, asked, strict=True)}


def requested_sums(pod: Pod) -> Sums:
    return requested(pod, RESOURCE_MEMORY_SUM), requested(pod, RESOURCE_CORES_SUM)
