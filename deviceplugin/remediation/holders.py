"""The pods that have GPUs now, by what was decided for them, and the signs against GPUs. Pure."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from deviceplugin.allocation.decision import decided_devices, lives
from deviceplugin.machine.readings import MissingGpu
from deviceplugin.remediation.step import Holder, Seen, Sign
from deviceplugin.usage.used import gpu_of
from proto.annotations.errors import AnnotationError
from proto.annotations.keys import DEVICES_ALLOCATED
from proto.devices import Device, DeviceUUID
from proto.kubernetes.objects import STATIC_UID, Container, ContainerStatus, Pod

_STARTING = ("", "ContainerCreating", "PodInitializing")
_SYSTEM_PRIORITY = 2_000_000_000
"""The least priority of Kubernetes' own: system-cluster-critical, system-node-critical."""
_SYSTEM_NAMESPACE = "kube-system"
_NOT_SHOWN = "the driver does not show it"


class ShownInventory(Protocol):
    """The part of `deviceplugin.gpus.Inventory` that is read here."""

    @property
    def devices(self) -> tuple[Device, ...]: ...
    @property
    def instances(self) -> Mapping[str, tuple[Device, ...]]: ...
    @property
    def problems(self) -> Mapping[DeviceUUID, str]: ...
    @property
    def physical(self) -> frozenset[DeviceUUID]: ...
    @property
    def parents(self) -> Mapping[DeviceUUID, DeviceUUID]: ...
    @property
    def missing(self) -> tuple[MissingGpu, ...]: ...


def unshown(inventory: ShownInventory, holders: Sequence[Holder]) -> frozenset[DeviceUUID]:
    """Returns the GPUs that pods have by their annotations and that the driver does not show."""
    shown = {device.uuid for device in _devices(inventory)}
    shown |= {*inventory.physical, *inventory.parents, *inventory.parents.values()}
    held = {DeviceUUID(gpu) for holder in holders for gpu in holder.gpus}
    return frozenset(held - shown)


def seen(
    inventory: ShownInventory,
    holders: Sequence[Holder],
    lost: Collection[DeviceUUID] = (),
    *,
    is_blind: bool = False,
) -> Seen:
    """Returns the state of the whole node. `lost` are the `unshown` GPUs that the node has had: they are ill. The other
    `unshown` ones are only what someone wrote on a pod.

    A MIG instance may go while its GPU is well: then it is ill for those that have it.
    """
    devices = _devices(inventory)
    names = {device.uuid: f"GPU {device.index} ({device.uuid})" for device in devices}
    parts = {uuid: inventory.parents.get(uuid, uuid) for uuid in names}
    partly_well = {gpu for uuid, gpu in parts.items() if uuid not in inventory.problems}
    held = {gpu for holder in holders for gpu in holder.gpus}
    ill: dict[str, Sign] = {}
    for uuid, problem in inventory.problems.items():
        gpu = parts.get(uuid, uuid)
        if gpu not in partly_well:
            ill[gpu] = Sign(name=names.get(gpu, f"GPU {gpu}"), problem=problem)
        elif uuid in held:
            ill[uuid] = Sign(name=names[uuid], problem=problem)
    gpus = set(parts.values()) | inventory.physical
    return Seen(
        ill=ill | _missing(inventory, lost), well=len(gpus - ill.keys()), holders=tuple(holders), is_blind=is_blind
    )


def _devices(inventory: ShownInventory) -> tuple[Device, ...]:
    return (*inventory.devices, *(device for found in inventory.instances.values() for device in found))


def _missing(inventory: ShownInventory, lost: Collection[str]) -> dict[str, Sign]:
    """Returns the signs of missing GPUs, by UUID if a pod names it, else by place. If pods have one such GPU and one is
    missing, they are the same.
    """
    if len(lost) == len(inventory.missing) == 1:
        [gpu], [uuid] = inventory.missing, lost
        return {uuid: Sign(name=f"{gpu.name} ({uuid})", problem=gpu.problem, missing=True)}
    places = {gpu.name: Sign(name=gpu.name, problem=gpu.problem, missing=True) for gpu in inventory.missing}
    return {uuid: Sign(name=f"GPU {uuid}", problem=_NOT_SHOWN) for uuid in sorted(lost)} | places


def holder_of(pod: Pod, parents: Mapping[DeviceUUID, DeviceUUID], resource: str) -> Holder | None:
    """Returns the pod with its GPUs; None if it has no GPU any more, or its decision cannot be read."""
    try:
        decided = decided_devices(pod, DEVICES_ALLOCATED, resource) if lives(pod) else ()
    except AnnotationError:
        return None
    statuses = {each.name: each for each in pod.all_statuses}
    having = [
        (container, shares)
        for position, (container, shares) in enumerate(zip(pod.all_containers, decided, strict=False))
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
        gpus=frozenset(
            uuid for _, shares in having for share in shares for uuid in _with_parent(gpu_of(share), parents)
        ),
        waits=not runs and any(_is_stuck(statuses.get(container.name)) for container, _ in having),
        leaves_at=None if gone is None else datetime.fromisoformat(gone),
        priority=pod.spec.priority or 0,
    )


def _with_parent(uuid: DeviceUUID, parents: Mapping[DeviceUUID, DeviceUUID]) -> tuple[DeviceUUID, ...]:
    return (uuid, parents[uuid]) if uuid in parents else (uuid,)


def why_spared(pod: Pod, controller: str) -> str:
    """Returns why the pod is never evicted, as a clause; empty if it may be. `controller` is the kind of controller."""
    if STATIC_UID in pod.metadata.annotations or controller == "Node":
        return "it is a static pod, which only its node can end"
    if pod.metadata.namespace == _SYSTEM_NAMESPACE or (pod.spec.priority or 0) >= _SYSTEM_PRIORITY:
        return "it is one of the cluster's own pods"
    if controller == "DaemonSet":
        return "its DaemonSet would make it again on this node"
    return "" if controller else "it has no controller that would make it again"


def _has_ended(pod: Pod, position: int, container: Container, status: ContainerStatus | None) -> bool:
    """Returns whether the container has ended for good: it is not started again unless its pod gets a new sandbox."""
    inits = len(pod.spec.init_containers)
    if position < inits and not container.is_sidecar:
        return pod.is_running
    if position < inits or status is None or status.state.terminated is None:
        return False
    once = pod.spec.restart_policy == "Never"
    return once or (pod.spec.restart_policy == "OnFailure" and status.state.terminated.exit_code == 0)


def _is_stuck(status: ContainerStatus | None) -> bool:
    waiting = None if status is None else status.state.waiting
    return waiting is not None and str(waiting.get("reason", "")) not in _STARTING
