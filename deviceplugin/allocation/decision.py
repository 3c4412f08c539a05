"""Reads what was decided for a pod's containers, and checks whether this node can give it out."""

from collections.abc import Mapping
from functools import lru_cache

from proto.annotations.errors import AnnotationError
from proto.annotations.pod_devices import aligned, decode_pod_devices
from proto.devices import ContainerShares, Device, DeviceUUID, PodShares
from proto.kubernetes.objects import Container, Pod
from proto.quantity import readable_quantity


def decided_devices(pod: Pod, key: str, resource: str) -> PodShares:
    """Returns the shares that annotation `key` gives each container. Containers request GPUs by `resource`. Raises
    AnnotationError.
    """
    value = pod.metadata.annotations.get(key)
    if value is None:
        raise AnnotationError(key, "", "missing")
    containers = pod.all_containers
    counts = [gpus_asked(container, resource) for container in containers]
    return aligned(_decoded(key, value, len(containers)), counts)


@lru_cache(maxsize=1024)
def _decoded(key: str, value: str, containers: int) -> PodShares:
    """Reads a decision, cached: each call of kubelet reads those of most pods of the node. Raises AnnotationError."""
    return decode_pod_devices(key, value, containers)


def unfit(
    held: ContainerShares, inventory: Mapping[DeviceUUID, Device], problems: Mapping[DeviceUUID, str] | None = None
) -> str:
    """Returns why these GPUs cannot be given out; empty if they can. `problems` are the reasons of unhealthy GPUs."""
    if len({share.uuid for share in held}) < len(held):
        return "one GPU was decided twice for the same container"
    for share in held:
        device = inventory.get(share.uuid)
        if device is None:
            return f"{share.uuid} is not a GPU of this node"
        if not device.healthy:
            return ": ".join(filter(None, (f"{share.uuid} is unhealthy", (problems or {}).get(share.uuid))))
        if share.memory_mib > device.memory_mib:
            return f"{share.memory_mib} MiB were decided of {share.uuid}, which has {device.memory_mib}"
        if share.cores > device.cores:
            return f"{share.cores} % of the cores were decided of {share.uuid}, which has {device.cores}"
    return ""


def gpus_asked(container: Container, resource: str) -> int:
    """Returns how many GPUs the container requests, 0 if that cannot be read."""
    limits, requests = container.resources.limits, container.resources.requests
    return readable_quantity(limits.get(resource, requests.get(resource, 0)))
