"""Replica ids: one GPU appears to kubelet as `<GPU-UUID>-<i>`, once for every container that may share it.

A MIG device is one container's: its UUID (`MIG-<uuid>`, or `MIG-GPU-<uuid>/<gi>/<ci>` of drivers before 470) is its
only id. Source of the forms: pkg/device-plugin/nvidiadevice of Project-HAMi/HAMi; i counts from 0.
"""

from collections.abc import Collection, Sequence

from proto.devices import MIG_PREFIX, Device, DeviceUUID

_REPLICA_DASHES = 6
"""`GPU-8-4-4-4-12` holds five; the sixth introduces the replica number."""


def replica_ids(device: Device) -> tuple[str, ...]:
    """Returns every id that kubelet may hand out for this device, in order."""
    if device.uuid.startswith(MIG_PREFIX):
        return (device.uuid,)
    return tuple(f"{device.uuid}-{number}" for number in range(device.replicas))


def split_replica(identifier: str) -> tuple[DeviceUUID, int]:
    """Returns device and replica number; an id that names no replica is a whole GPU or a MIG device, replica 0."""
    if identifier.startswith(MIG_PREFIX):
        return DeviceUUID(identifier), 0
    gpu, _, number = identifier.rpartition("-")
    if identifier.count("-") == _REPLICA_DASHES and number.isascii() and number.isdigit():
        return DeviceUUID(gpu), int(number)
    return DeviceUUID(identifier), 0


def preferred_replicas(
    decided: Sequence[DeviceUUID], available: Collection[str], must_include: Sequence[str], size: int
) -> tuple[str, ...]:
    """Returns the ids on the decided GPUs: what must be included, then one free replica of each GPU left.

    Fewer than `size` when the decided GPUs have no more free replicas; kubelet fills up on its own.
    """
    chosen = list(must_include)
    missing = list(decided)
    for identifier in must_include:
        gpu = split_replica(identifier)[0]
        if gpu in missing:
            missing.remove(gpu)
    free = sorted(set(available) - set(must_include), key=split_replica)
    for gpu in missing:
        replica = next((identifier for identifier in free if split_replica(identifier)[0] == gpu), None)
        if replica is not None:
            chosen.append(replica)
            free.remove(replica)
    return tuple(chosen[:size])
