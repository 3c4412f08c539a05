"""What the scheduler decided for the containers of a pod, and whether this node can hand it out."""

from collections.abc import Mapping
from functools import lru_cache

from proto.annotations.errors import AnnotationError
from proto.annotations.pod_devices import aligned, decode_pod_devices
from proto.devices import ContainerShares, Device, DeviceUUID, PodShares
from proto.kubernetes.objects import Container, Pod
from proto.quantity import QuantityError, integer_quantity


def pod_name(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def decided_devices(pod: Pod, key: str, resource: str) -> PodShares:
    """What annotation `key` gives each container; `resource` is what containers ask GPUs by. Raises AnnotationError."""
    value = pod.metadata.annotations.get(key)
    if value is None:
        raise AnnotationError(key, "", "missing")
    containers = pod.all_containers
    counts = [gpus_asked(container, resource) for container in containers]
    return aligned(_decoded(key, value, len(containers)), counts)


@lru_cache(maxsize=1024)
def _decoded(key: str, value: str, containers: int) -> PodShares:
    """At every call of kubelet the decisions for most pods of the node are read. Raises AnnotationError."""
    return decode_pod_devices(key, value, containers)


def unfit(
    held: ContainerShares, inventory: Mapping[DeviceUUID, Device], problems: Mapping[DeviceUUID, str] | None = None
) -> str:
    """Why these GPUs cannot be handed out, empty when they can. `problems`: why GPUs are unhealthy, where known."""
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
    """How many GPUs the container asks for, 0 when that cannot be read."""
    asked = container.resources.limits.get(resource, container.resources.requests.get(resource, "0"))
    try:
        return integer_quantity(asked)
    except QuantityError:
        return 0
