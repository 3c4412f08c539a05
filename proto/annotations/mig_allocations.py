"""`hami.io/vgpu-mig-allocations`: which MIG instance each share of a pod is.

`[{"containerIndex":0,"deviceIndex":0,"gpuUUID":"GPU-a","profile":"2g.10gb","placement":{"start":2,"size":2}}]`, one
object for each share. The node daemon adds `migUUID`, `gpuInstanceID` and `computeInstanceID` once the instance exists.
Source: HAMi 2.10, pkg/device/nvidia of Project-HAMi/HAMi.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from proto.annotations.errors import AnnotationError
from proto.annotations.keys import MIG_ALLOCATIONS
from proto.annotations.values import decode_json
from proto.devices import DeviceUUID, MigPlacement, Natural, PodShares


class MigAllocation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One row; the order of fields is Go's. `container` counts init containers first, `device` the shares of the
    container. The last three are the driver's ids of an instance that exists.
    """

    container: Natural = msgspec.field(name="containerIndex")
    device: Natural = msgspec.field(name="deviceIndex")
    gpu: Annotated[DeviceUUID, Meta(min_length=1)] = msgspec.field(name="gpuUUID")
    profile: Annotated[str, Meta(min_length=1)]
    placement: MigPlacement
    mig_uuid: Annotated[str, Meta(min_length=1)] | None = msgspec.field(name="migUUID", default=None)
    gpu_instance: Natural | None = msgspec.field(name="gpuInstanceID", default=None)
    compute_instance: Natural | None = msgspec.field(name="computeInstanceID", default=None)

    def __post_init__(self) -> None:
        real = (self.mig_uuid, self.gpu_instance, self.compute_instance)
        if None in real and any(part is not None for part in real):
            raise ValueError("migUUID, gpuInstanceID and computeInstanceID come together or not at all")


def mig_allocations(pod: PodShares) -> tuple[MigAllocation, ...]:
    """Writes the shares that are MIG instances, in order."""
    return tuple(
        MigAllocation(
            container=position,
            device=number,
            gpu=share.uuid,
            profile=share.instance.profile,
            placement=share.instance.placement,
        )
        for position, container in enumerate(pod)
        for number, share in enumerate(container)
        if share.instance is not None
    )


def encode_mig_allocations(allocations: tuple[MigAllocation, ...]) -> str:
    return msgspec.json.encode(allocations).decode()


def decode_mig_allocations(value: str) -> tuple[MigAllocation, ...]:
    """Reads the rows in the order written. Raises AnnotationError naming the row and field; one bad row makes the list
    unreadable.
    """
    rows = decode_json(MIG_ALLOCATIONS, value, tuple[MigAllocation, ...])
    seen: set[tuple[int, int]] = set()
    for position, row in enumerate(rows):
        if (row.container, row.device) in seen:
            problem = f"container {row.container}, device {row.device} is listed twice"
            raise AnnotationError(MIG_ALLOCATIONS, f"$[{position}]", problem)
        seen.add((row.container, row.device))
    return rows
