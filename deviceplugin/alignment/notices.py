"""What the owner of a pod learns when kubelet refused it, or gave it CPUs that are apart from its GPUs (pure)."""

from collections.abc import Collection, Iterable, Mapping

from program.words import enumerated
from proto.annotations.node_numa import NodeNuma, TopologyScope
from proto.devices import ContainerShares, Device, DeviceUUID
from proto.kubernetes.objects import Notice


def apart(
    container: str,
    cpus: Collection[int],
    shares: ContainerShares,
    zone_of_cpu: Mapping[int, int],
    gpus: Mapping[DeviceUUID, Device],
) -> Notice | None:
    """Returns the notice of a container none of whose CPUs is on a NUMA node of its GPUs; None for any other."""
    near = {gpus[share.uuid].numa for share in shares if share.uuid in gpus} & {*zone_of_cpu.values()}
    zones = {zone_of_cpu[cpu] for cpu in cpus if cpu in zone_of_cpu}
    if not near or not zones or near & zones:
        return None
    message = (
        f"container {container} has CPUs of {_named(zones)}, and its GPUs are on {_named(near)}: kubelet took other "
        "CPUs than the decision expected. If the pod is made again, it is decided again"
    )
    return Notice(reason="CPUsApartFromGPUs", message=message, distinct=True)


def refused(numa: NodeNuma | None) -> Notice:
    """Returns the notice of a pod that kubelet's Topology Manager refused for good."""
    if numa is None:
        message = (
            "kubelet's Topology Manager refused the pod, and the daemon does not know kubelet's policy: set "
            "kubelet_config, and such pods are not sent here"
        )
    else:
        part = "the pod" if numa.scope is TopologyScope.POD else "one of its containers"
        room = "; ".join(
            f"NUMA node {number} has {zone.free} CPUs that no pod without GPUs has"
            for number, zone in numa.zones.items()
        )
        message = f"kubelet's Topology Manager ({numa.policy}) found no NUMA nodes with enough for {part}" + (
            f": {room}" if room else ""
        )
    return Notice(reason="RefusedByTopologyManager", message=message, distinct=True)


def _named(zones: Iterable[int]) -> str:
    numbers = sorted(zones)
    return f"NUMA node{'' if len(numbers) == 1 else 's'} {enumerated([str(each) for each in numbers])}"
