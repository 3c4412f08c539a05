"""The cluster's state for one decision."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from msgspec import Struct
from msgspec.structs import replace as with_fields

from proto.devices import ContainerShares, Device, DeviceShare, MigInstance, MigPlacement, PodShares
from proto.kubernetes.requests import HostAmount
from scheduler_ext.cluster.accounting import NOTHING, Footprint
from scheduler_ext.cluster.closed_nodes import SetAsideFor
from scheduler_ext.cluster.registered import RegisteredNode
from scheduler_ext.quota_class import QuotaClass, Scope, are_in
from scheduler_ext.workload import NO_WORKLOAD, Workload

TOTAL_EXCEEDED = "NodeTotalExceeded"
"""Reason for a node whose kubelet would refuse the pod, with the resource of which its pods would request too much."""


class GpuUsage(Struct, frozen=True, gc=False):
    """One GPU and what is taken of it."""

    device: Device
    replicas: int = 0
    memory_mib: int = 0
    cores: int = 0
    placements: tuple[MigPlacement, ...] = ()
    """The places of MIG instances on the GPU."""

    def plus(self, share: DeviceShare) -> "GpuUsage":
        """Returns the GPU with one more container's share taken."""
        placements = self.occupied(share.instance).placements
        memory_mib, cores = self.memory_mib + share.memory_mib, self.cores + share.cores
        return GpuUsage(self.device, self.replicas + 1, memory_mib, cores, placements)

    def occupied(self, instance: MigInstance | None) -> "GpuUsage":
        """Returns the GPU with only an instance's placement taken; unchanged without one."""
        return self if instance is None else with_fields(self, placements=(*self.placements, instance.placement))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUsage:
    """A registered node and its GPUs, in annotation order."""

    node: RegisteredNode
    gpus: tuple[GpuUsage, ...]
    free_cpus: Mapping[int, int] = field(default_factory=dict)
    """The CPUs of each NUMA node that kubelet may give to a container alone; empty where it keeps none together with
    GPUs.
    """
    undecided: tuple[str, ...] = ()
    """The pods that hold GPUs of it without a decision, by namespace and name."""
    set_aside: SetAsideFor | None = None
    """The pod for which it is kept, if any."""

    @property
    def is_whole(self) -> bool:
        """Returns whether a pod may get all GPUs of the node."""
        return all(map(self.is_free, self.gpus))

    def is_free(self, gpu: GpuUsage) -> bool:
        """Returns whether a pod may get all of the GPU: it is neither in use nor out of service."""
        device = gpu.device
        return not gpu.replicas and self._serves(device)

    def offers(self, shares: PodShares) -> bool:
        """Returns whether all GPUs of the shares are on the node and in service."""
        served = {gpu.device.uuid for gpu in self.gpus if self._serves(gpu.device)}
        return all(share.uuid in served for container in shares for share in container)

    def _serves(self, device: Device) -> bool:
        return device.healthy and device.uuid not in self.node.cordoned


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """The most that pods of a namespace may hold of all GPUs together. None does not limit."""

    memory_mib: int | None = None
    cores: int | None = None
    gpus: int | None = None
    """The most shares of GPUs, as many as containers request; in `used` they are replicas."""
    used: Footprint = NOTHING
    scopes: tuple[Scope, ...] = ()
    """The scopes of the quota: it counts and limits the pods that are in every one of them."""

    def charged(self, shares: ContainerShares) -> "Quota":
        """Returns the quota with one more container counted."""
        more = Footprint(len(shares), sum(s.memory_mib for s in shares), sum(s.cores for s in shares))
        return replace(self, used=self.used + more)

    def admits(self, memory_mib: int, cores: int, gpus: int = 0) -> bool:
        """Returns whether this much more stays within the limits."""
        used = self.used
        return (
            (self.memory_mib is None or used.memory_mib + memory_mib <= self.memory_mib)
            and (self.cores is None or used.cores + cores <= self.cores)
            and (self.gpus is None or used.replicas + gpus <= self.gpus)
        )


def quota_for(pods: QuotaClass, quotas: Iterable[Quota]) -> Quota | None:
    """Returns all quotas that apply to these pods, combined; None without any.

    A pod counts in each of them, so for every amount the quota that leaves least decides.
    """
    return least_left(quota for quota in quotas if are_in(pods, quota.scopes))


def least_left(quotas: Iterable[Quota]) -> Quota | None:
    """Returns for every amount the limit and use of the quota that leaves least. `used` is 0 where none limits."""
    every = tuple(quotas)
    if not every:
        return None
    memory_mib, memory_used = _least((quota.memory_mib, quota.used.memory_mib) for quota in every)
    cores, cores_used = _least((quota.cores, quota.used.cores) for quota in every)
    gpus, replicas = _least((quota.gpus, quota.used.replicas) for quota in every)
    return Quota(memory_mib=memory_mib, cores=cores, gpus=gpus, used=Footprint(replicas, memory_used, cores_used))


def _least(amounts: Iterable[tuple[int | None, int]]) -> tuple[int | None, int]:
    """Returns the limit and the use of the quota that leaves least; None and 0 if none limits."""
    limited = [(limit, used) for limit, used in amounts if limit is not None]
    return min(limited, key=lambda each: (each[0] - each[1], each)) if limited else (None, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The cluster at one moment; it never changes. `unregistered` has the reason why a known node offers no GPU."""

    nodes: Mapping[str, NodeUsage] = field(default_factory=dict)
    unregistered: Mapping[str, str] = field(default_factory=dict)
    closed: Mapping[str, NodeUsage] = field(default_factory=dict)
    """The nodes of `unregistered` that offer GPUs, but to others than the pod."""
    quotas: Mapping[str, tuple[Quota, ...]] = field(default_factory=dict)
    """The quotas by namespace; a namespace without one is not limited."""
    hosts: Mapping[str, HostAmount] = field(default_factory=dict)
    """CPU and memory left, by node. Nothing is known of a node that is not named."""
    workload: Workload = NO_WORKLOAD

    def without(self, reasons: Mapping[str, str]) -> "Snapshot":
        """Returns the cluster without these nodes, which are closed for a pod, and why each of them is."""
        nodes = {name: usage for name, usage in self.nodes.items() if name not in reasons}
        closed = {name: self.nodes[name] for name in reasons if name in self.nodes}
        return replace(
            self, nodes=nodes, closed={**self.closed, **closed}, unregistered={**self.unregistered, **reasons}
        )
