"""The state of the cluster one decision is taken on."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from proto.devices import ContainerShares, Device, DeviceShare, MigInstance, MigPlacement
from scheduler_ext.cluster.accounting import NOTHING, Footprint
from scheduler_ext.cluster.registered import RegisteredNode


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """One GPU and what is taken of it."""

    device: Device
    slots: int = 0
    memory_mib: int = 0
    cores: int = 0
    placements: tuple[MigPlacement, ...] = ()
    """Where MIG instances lie."""

    def plus(self, share: DeviceShare) -> "GpuUsage":
        """With one more container's share of it."""
        placements = self.occupied(share.instance).placements
        memory_mib, cores = self.memory_mib + share.memory_mib, self.cores + share.cores
        return GpuUsage(self.device, self.slots + 1, memory_mib, cores, placements)

    def occupied(self, instance: MigInstance | None) -> "GpuUsage":
        """With only an instance's place taken; the same without one."""
        return self if instance is None else replace(self, placements=(*self.placements, instance.placement))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUsage:
    """A registered node and its GPUs, in annotation order."""

    node: RegisteredNode
    gpus: tuple[GpuUsage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What a namespace may hold of all GPUs together; None does not limit."""

    memory_mib: int | None = None
    cores: int | None = None
    gpus: int | None = None
    """Shares of GPUs, as many as containers ask for; in `used` they are slots."""
    used: Footprint = NOTHING

    def charged(self, shares: ContainerShares) -> "Quota":
        """With one more container counted."""
        more = Footprint(len(shares), sum(s.memory_mib for s in shares), sum(s.cores for s in shares))
        return replace(self, used=self.used + more)

    def admits(self, memory_mib: int, cores: int, gpus: int = 0) -> bool:
        """Whether so much more stays within the limits."""
        used = self.used
        return (
            (self.memory_mib is None or used.memory_mib + memory_mib <= self.memory_mib)
            and (self.cores is None or used.cores + cores <= self.cores)
            and (self.gpus is None or used.slots + gpus <= self.gpus)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Immutable. `unregistered` says why a known node offers no GPU."""

    nodes: Mapping[str, NodeUsage] = field(default_factory=dict)
    unregistered: Mapping[str, str] = field(default_factory=dict)
    quotas: Mapping[str, Quota] = field(default_factory=dict)
    """By namespace; a namespace without one is not limited."""
