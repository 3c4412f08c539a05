"""The memory that a container gets from the driver when it starts while other memory is wished for its pod."""

from dataclasses import replace

from deviceplugin.allocation.decision import decided_devices
from deviceplugin.resizing.step import LimitsMib, served
from proto.annotations.errors import AnnotationError
from proto.annotations.keys import DEVICES_ALLOCATED
from proto.annotations.memory_resize import answer_in
from proto.devices import ContainerShares
from proto.kubernetes.objects import Pod


def size_now(
    pod: Pod, position: int, proven: ContainerShares, resource: str, before: LimitsMib | None
) -> ContainerShares:
    """Returns what the container at this position of the pod gets of what it was proven to hold. `before` are its last
    limits, for a pod that may be older than these.
    """
    annotations = pod.metadata.annotations
    try:
        shares = decided_devices(pod, DEVICES_ALLOCATED, resource)
    except AnnotationError:
        return proven
    names = [container.name for container in pod.all_containers]
    least = {share.uuid: share.memory_mib for share in served(answer_in(annotations), names, shares)[position]}
    for limits in (least, before or {}):
        proven = tuple(
            replace(share, memory_mib=min(share.memory_mib, limits.get(share.uuid, share.memory_mib)))
            for share in proven
        )
    return proven
