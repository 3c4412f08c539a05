"""GPUs and shares of GPUs, as they travel between the node daemon and the extender."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, NewType

import msgspec
from msgspec import Meta

DeviceUUID = NewType("DeviceUUID", str)

MIG_MODE = "mig"
"""The `mode` of a GPU whose MIG instances are created as containers request them."""

MIG_PREFIX = "MIG-"
"""The prefix of a MIG instance's UUID."""
MIG_RESOURCE_PREFIX = "nvidia.com/mig-"
"""The beginning of the name of a resource of MIG instances; the profile follows."""

VENDOR = "NVIDIA"
"""The second field of every device entry on a pod; the vendor, not the model."""

UNKNOWN_NUMA = -1
"""The NUMA node of a GPU is unknown. Distinct from node 0."""

LARGEST = 2**31 - 1
"""The largest amount: HAMi keeps amounts in 32 bits."""
Int32 = Annotated[int, Meta(ge=-LARGEST - 1, le=LARGEST)]
Natural = Annotated[int, Meta(ge=0, le=LARGEST)]
Positive = Annotated[int, Meta(ge=1, le=LARGEST)]


@dataclass(frozen=True, slots=True, kw_only=True)
class MigPlacement:
    """Memory slices `[start, start + size)` of one GPU."""

    start: Natural
    size: Positive

    def overlaps(self, other: "MigPlacement") -> bool:
        return self.start < other.start + other.size and other.start < self.start + self.size


class MigProfile(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename={"memory_mib": "memoryMB", "cores": "core", "slice_count": "sliceCount"},
):
    """One kind of MIG instance a GPU can be cut into, as HAMi writes it."""

    name: str
    memory_mib: Int32
    cores: Int32
    slice_count: Int32
    placements: tuple[MigPlacement, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """The MIG instance of a share: its profile's name and its place on the GPU."""

    profile: str
    placement: MigPlacement


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One physical GPU, as its node advertises it."""

    uuid: DeviceUUID
    index: int
    """NVML index; orders the annotation, never identifies a GPU."""
    replicas: int
    """The most containers that may share it."""
    memory_mib: int
    cores: int
    """Percent of one GPU: 100 unless the node scales cores."""
    type: str
    """Product name, always beginning with `NVIDIA`."""
    numa: int
    mode: str
    """`hami-core`, `mig` or `mps`."""
    healthy: bool
    mig_profiles: tuple[MigProfile, ...] = ()

    @property
    def is_mig(self) -> bool:
        """Returns whether the hardware enforces a container's share."""
        return self.mode == MIG_MODE or self.uuid.startswith(MIG_PREFIX)

    def is_part(self, memory_mib: int, cores: int) -> bool:
        """Returns whether the share needs enforcement: without it, a container could use more."""
        return self.is_part_of_memory(memory_mib) or self.is_part_of_cores(cores)

    def is_part_of_memory(self, memory_mib: int) -> bool:
        """Returns whether something must hold a container to this much of its memory."""
        return not self.is_mig and memory_mib < self.memory_mib

    def is_part_of_cores(self, cores: int) -> bool:
        """Returns whether something must hold a container to this percentage of its cores; 0 is no limit."""
        return not self.is_mig and 0 < cores < 100


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceShare:
    """The part of one GPU that one container holds."""

    uuid: DeviceUUID
    memory_mib: int
    cores: int
    """Percent of one GPU; 0 means no core limit."""
    instance: MigInstance | None = None
    """The place on a GPU in MIG mode; it is written to a separate annotation."""


ContainerShares = tuple[DeviceShare, ...]
PodShares = tuple[ContainerShares, ...]
"""One entry per container, init containers first; empty for a container without GPUs."""

PairScores = Mapping[DeviceUUID, Mapping[DeviceUUID, int]]
"""Score of every known pair of GPUs of one node; a missing pair counts 0."""
