"""`hami.io/vgpu-mig-allocations`: which MIG instance each share of a pod is.

`[{"containerIndex":0,"deviceIndex":0,"gpuUUID":"GPU-a","profile":"2g.10gb","placement":{"start":2,"size":2}}]`, one
object for each share. The node daemon adds `migUUID`, `gpuInstanceID` and `computeInstanceID` once the instance exists.
Source: HAMi 2.10, pkg/device/nvidia of Project-HAMi/HAMi.
"""

from dataclasses import dataclass

import msgspec

from proto.annotations.errors import AnnotationError
from proto.annotations.keys import MIG_ALLOCATIONS
from proto.annotations.values import Int32, decode_json
from proto.devices import DeviceUUID, MigInstance, MigPlacement, PodShares


@dataclass(frozen=True, slots=True, kw_only=True)
class RealMigInstance:
    """The driver's ids of an instance that exists."""

    uuid: DeviceUUID
    gpu_instance: int
    compute_instance: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MigAllocation:
    """`container` counts init containers first, `device` the shares of the container."""

    container: int
    device: int
    gpu: DeviceUUID
    instance: MigInstance
    real: RealMigInstance | None = None


class _MigPlacement(msgspec.Struct):
    start: Int32
    size: Int32


class _MigRow(msgspec.Struct, omit_defaults=True):
    """Field order is Go's."""

    container: Int32 = msgspec.field(name="containerIndex")
    device: Int32 = msgspec.field(name="deviceIndex")
    gpu: str = msgspec.field(name="gpuUUID")
    profile: str
    placement: _MigPlacement
    mig_uuid: str | None = msgspec.field(name="migUUID", default=None)
    gpu_instance: Int32 | None = msgspec.field(name="gpuInstanceID", default=None)
    compute_instance: Int32 | None = msgspec.field(name="computeInstanceID", default=None)


def mig_allocations(pod: PodShares) -> tuple[MigAllocation, ...]:
    """Writes the shares that are MIG instances, in order."""
    return tuple(
        MigAllocation(container=position, device=number, gpu=share.uuid, instance=share.instance)
        for position, container in enumerate(pod)
        for number, share in enumerate(container)
        if share.instance is not None
    )


def encode_mig_allocations(allocations: tuple[MigAllocation, ...]) -> str:
    return msgspec.json.encode([_row(allocation) for allocation in allocations]).decode()


def decode_mig_allocations(value: str) -> tuple[MigAllocation, ...]:
    """Reads the rows in the order written. Raises AnnotationError naming the row and field; one bad row makes the list
    unreadable.
    """
    rows = decode_json(MIG_ALLOCATIONS, value, list[_MigRow])
    seen: set[tuple[int, int]] = set()
    for position, row in enumerate(rows):
        _refuse_nonsense(f"$[{position}]", row)
        if (row.container, row.device) in seen:
            problem = f"container {row.container}, device {row.device} is listed twice"
            raise AnnotationError(MIG_ALLOCATIONS, f"$[{position}]", problem)
        seen.add((row.container, row.device))
    return tuple(_allocation(row) for row in rows)


def _refuse_nonsense(where: str, row: _MigRow) -> None:
    numbers = {
        "containerIndex": row.container,
        "deviceIndex": row.device,
        "placement.start": row.placement.start,
        "gpuInstanceID": row.gpu_instance or 0,
        "computeInstanceID": row.compute_instance or 0,
    }
    for field, number in numbers.items():
        if number < 0:
            raise AnnotationError(MIG_ALLOCATIONS, f"{where}.{field}", f"negative: {number}")
    if row.placement.size < 1:
        raise AnnotationError(MIG_ALLOCATIONS, f"{where}.placement.size", f"expected 1 or more: {row.placement.size}")
    for field, text in {"gpuUUID": row.gpu, "profile": row.profile, "migUUID": row.mig_uuid}.items():
        if text == "":
            raise AnnotationError(MIG_ALLOCATIONS, f"{where}.{field}", "empty")
    real = (row.mig_uuid, row.gpu_instance, row.compute_instance)
    if None in real and any(part is not None for part in real):
        raise AnnotationError(
            MIG_ALLOCATIONS, where, "migUUID, gpuInstanceID and computeInstanceID come together or not at all"
        )


def _row(allocation: MigAllocation) -> _MigRow:
    real, placement = allocation.real, allocation.instance.placement
    return _MigRow(
        container=allocation.container,
        device=allocation.device,
        gpu=allocation.gpu,
        profile=allocation.instance.profile,
        placement=_MigPlacement(start=placement.start, size=placement.size),
        mig_uuid=None if real is None else real.uuid,
        gpu_instance=None if real is None else real.gpu_instance,
        compute_instance=None if real is None else real.compute_instance,
    )


def _allocation(row: _MigRow) -> MigAllocation:
    real = None
    if row.mig_uuid is not None and row.gpu_instance is not None and row.compute_instance is not None:
        real = RealMigInstance(
            uuid=DeviceUUID(row.mig_uuid), gpu_instance=row.gpu_instance, compute_instance=row.compute_instance
        )
    placement = MigPlacement(start=row.placement.start, size=row.placement.size)
    return MigAllocation(
        container=row.container,
        device=row.device,
        gpu=DeviceUUID(row.gpu),
        instance=MigInstance(profile=row.profile, placement=placement),
        real=real,
    )
