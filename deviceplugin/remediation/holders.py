"""Which pods have which GPUs now, by what was decided for them, and what speaks against which GPU. Pure."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from deviceplugin.allocation.capacity import lives
from deviceplugin.allocation.decided import containers_of, decided_devices
from deviceplugin.machine.readings import MissingGpu
from deviceplugin.remediation.step import Holder, Seen, Sign
from proto.annotations.errors import AnnotationError
from proto.annotations.keys import DEVICES_ALLOCATED
from proto.devices import Device, DeviceUUID
from proto.kubernetes.objects import Container, ContainerStatus, Pod

_STARTING = ("", "ContainerCreating", "PodInitializing")
_SYSTEM_PRIORITY = 2_000_000_000
"""From here on a priority is Kubernetes' own: system-cluster-critical, system-node-critical."""
_SYSTEM_NAMESPACE = "kube-system"
MIRROR = "kubernetes.io/config.mirror"
_NOT_SHOWN = "the driver does not show it"


class Inventory(Protocol):
    """`deviceplugin.gpus.Inventory`, as far as it is asked."""

    @property
    def devices(self) -> tuple[Device, ...]: ...
    @property
    def problems(self) -> Mapping[DeviceUUID, str]: ...
    @property
    def physical(self) -> frozenset[DeviceUUID]: ...
    @property
    def parents(self) -> Mapping[DeviceUUID, DeviceUUID]: ...
    @property
    def missing(self) -> tuple[MissingGpu, ...]: ...


def seen(inventory: Inventory, holders: Sequence[Holder]) -> Seen:
    """Of the whole node. A GPU that a pod has and that the driver does not show is ill."""
    names = {device.uuid: f"GPU {device.index} ({device.uuid})" for device in inventory.devices}
    shown = {inventory.parents.get(device.uuid, device.uuid) for device in inventory.devices} | inventory.physical
    ill: dict[str, Sign] = {}
    for uuid, problem in inventory.problems.items():
        gpu = inventory.parents.get(uuid, uuid)
        ill[gpu] = Sign(name=names.get(gpu, f"GPU {gpu}"), problem=problem)
    well = len(shown - ill.keys())
    return Seen(ill=ill | _missing(inventory, holders, shown | ill.keys()), well=well, holders=tuple(holders))


def _missing(inventory: Inventory, holders: Collection[Holder], shown: Collection[str]) -> dict[str, Sign]:
    """By UUID where a pod tells it, else by place. One that pods have and one that is missing are the same."""
    lost = sorted({gpu for holder in holders for gpu in holder.gpus if gpu not in shown})
    if len(lost) == len(inventory.missing) == 1:
        [gpu] = inventory.missing
        return {lost[0]: Sign(name=f"{gpu.name} ({lost[0]})", problem=gpu.problem, missing=True)}
    places = {gpu.name: Sign(name=gpu.name, problem=gpu.problem, missing=True) for gpu in inventory.missing}
    return {uuid: Sign(name=f"GPU {uuid}", problem=_NOT_SHOWN) for uuid in lost} | places


def holder_of(pod: Pod, parents: Mapping[DeviceUUID, DeviceUUID], resource: str) -> Holder | None:
    """None for a pod that has no GPU any more, or whose decision cannot be read."""
    try:
        decided = decided_devices(pod, DEVICES_ALLOCATED, resource) if lives(pod) else ()
    except AnnotationError:
        return None
    statuses = {each.name: each for each in (*pod.status.init_container_statuses, *pod.status.container_statuses)}
    having = [
        (container, shares)
        for position, (container, shares) in enumerate(zip(containers_of(pod), decided, strict=False))
        if shares and not _has_ended(pod, position, container, statuses.get(container.name))
    ]
    if not having:
        return None
    runs = any(each.state.running is not None for each in statuses.values())
    gone = pod.metadata.deletion_timestamp
    return Holder(
        uid=pod.metadata.uid,
        namespace=pod.metadata.namespace,
        pod=pod.metadata.name,
        gpus=frozenset(parents.get(share.uuid, share.uuid) for _, shares in having for share in shares),
        waits=not runs and any(_is_stuck(statuses.get(container.name)) for container, _ in having),
        leaves_at=None if gone is None else datetime.fromisoformat(gone),
        priority=pod.spec.priority or 0,
    )


def why_spared(pod: Pod, controller: str) -> str:
    """Why it is never evicted, a clause; empty where it may be. `controller` is the kind of its controller."""
    if MIRROR in pod.metadata.annotations or controller == "Node":
        return "it is a static pod, which only its node can end"
    if pod.metadata.namespace == _SYSTEM_NAMESPACE or (pod.spec.priority or 0) >= _SYSTEM_PRIORITY:
        return "it is one of the cluster's own pods"
    if controller == "DaemonSet":
        return "its DaemonSet would make it again on this node"
    return "" if controller else "it has no controller that would make it again"


def _has_ended(pod: Pod, position: int, container: Container, status: ContainerStatus | None) -> bool:
    """For good: it is not started again, unless its pod gets a new sandbox."""
    inits = len(pod.spec.init_containers)
    if position < inits and container.restart_policy != "Always":
        return pod.status.phase == "Running"
    if position < inits or status is None or status.state.terminated is None:
        return False
    once = pod.spec.restart_policy == "Never"
    return once or (pod.spec.restart_policy == "OnFailure" and status.state.terminated.exit_code == 0)


def _is_stuck(status: ContainerStatus | None) -> bool:
    waiting = None if status is None else status.state.waiting
    return waiting is not None and str(waiting.get("reason", "")) not in _STARTING
