"""Combines decided shares, the driver's processes and HAMi-core's regions: how much each container uses of each GPU."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from deviceplugin.usage.cgroups import CgroupOwner
from deviceplugin.usage.shared_region import Region, RegionDevice
from proto.annotations.errors import AnnotationError
from proto.annotations.keys import DEVICES_ALLOCATED
from proto.annotations.pod_devices import decode_pod_devices
from proto.devices import DeviceShare, DeviceUUID
from proto.kubernetes.objects import ContainerStatus, Pod

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    pid: int
    """The host's."""
    used_bytes: int | None
    """None where the driver does not report it."""
    sm_percent: int | None
    """The percent of the whole GPU's SM time; None if the driver does not report it."""
    peak_percent: int = 0
    """The most of it in one of the driver's samples since the reading before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One GPU at one moment; None is what the driver does not report."""

    uuid: DeviceUUID
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    """The memory in use, with the driver's own reserved part (NVML's memory info version 1)."""
    busy_percent: int | None = None
    memory_busy_percent: int | None = None
    """Time in which device memory was read or written."""
    temperature_celsius: int | None = None
    power_watts: float | None = None
    nvlinks: int | None = None
    nvlinks_active: int | None = None
    processes: tuple[GpuProcess, ...] | None = None
    """Processes of all kinds, one for each pid; None also where pids of the host mean nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSample:
    """The whole node at one moment."""

    gpus: tuple[GpuSample, ...] = ()
    owners: Mapping[int, CgroupOwner] = field(default_factory=dict)
    """The owner of each process by the host's pid; processes outside pods are left out."""
    regions: Mapping[tuple[str, str], Region] = field(default_factory=dict)
    """HAMi-core's regions by pod UID and container name."""
    by_driver: Mapping[tuple[str, str, DeviceUUID], int] = field(default_factory=dict)
    """Bytes that the driver counts for a container that it limits, by pod UID, container name and GPU."""
    unreadable_regions: int = 0
    regions_left_out: int = 0
    """Processes beyond the number that is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VgpuUsage:
    """One share of one container: what it may, and what it does."""

    namespace: str
    pod: str
    container: str
    position: int
    """The GPU's position in its container, by NVML index: CUDA's ordinal."""
    uuid: DeviceUUID
    memory_limit_bytes: int
    """0 means no limit of its own."""
    core_limit_percent: int
    memory_used_bytes: int | None
    """The memory in use as the driver counts it for the container or its processes, else as HAMi-core counts it."""
    busy_percent: int | None
    """The percent of the GPU's SM time, from the same source."""
    pod_uid: str = ""
    peak_percent: int | None = None
    """The most since the reading before; None where nothing shows it."""
    region: RegionDevice | None = None
    last_kernel_unix_seconds: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    vgpus: tuple[VgpuUsage, ...] = ()
    foreign_bytes: Mapping[DeviceUUID, int] = field(default_factory=dict)
    """Memory used by processes of no container that holds the GPU: the host's, or one that bypassed the extender."""
    unreadable_pods: int = 0
    """Pods whose annotations cannot be read; their containers are missing."""


@dataclass(frozen=True, slots=True)
class _GpuUser:
    """A container that holds shares, and its place among all holders."""

    pod: Pod
    name: str
    container_id: str
    shares: tuple[DeviceShare, ...]

    def holds(self, uuid: DeviceUUID) -> bool:
        return any(gpu_of(share) == uuid for share in self.shares)


def gpu_of(share: DeviceShare) -> DeviceUUID:
    """Strips the suffix: HAMi 2.5 to 2.9 append `[template-slot]` to the UUID of a GPU in MIG mode."""
    return DeviceUUID(share.uuid.partition("[")[0])


def node_usage(pods: Iterable[Pod], sample: NodeSample, indices: Mapping[DeviceUUID, int]) -> Usage:
    """Computes the usage of every container that runs or will run. `indices` are the GPUs' NVML indices."""
    holders: list[_GpuUser] = []
    unreadable = 0
    for pod in pods:
        try:
            holders += _holders(pod)
        except AnnotationError:
            unreadable += 1
    used, foreign = _attribute(holders, sample)
    gpus = {gpu.uuid: gpu for gpu in sample.gpus}
    vgpus = [row for holder in holders for row in _rows(holder, used, gpus, sample, indices)]
    return Usage(vgpus=tuple(vgpus), foreign_bytes=foreign, unreadable_pods=unreadable)


def held_by(pod: Pod) -> Mapping[str, frozenset[DeviceUUID]]:
    """Returns the GPUs of each container that has some and has not ended, by its name; none if that is unreadable."""
    try:
        return {each.name: frozenset(map(gpu_of, each.shares)) for each in _holders(pod)}
    except AnnotationError:
        return {}


def _holders(pod: Pod) -> list[_GpuUser]:
    """Returns containers with shares that have not ended. Raises AnnotationError."""
    value = pod.metadata.annotations.get(DEVICES_ALLOCATED)
    if value is None or pod.has_ended:
        return []
    containers = pod.all_containers
    statuses = {status.name: status for status in pod.all_statuses}
    holders = []
    for container, shares in zip(
        containers, decode_pod_devices(DEVICES_ALLOCATED, value, len(containers)), strict=True
    ):
        status = statuses.get(container.name, ContainerStatus())
        if shares and status.state.terminated is None:
            # The wire has `containerd://<id>`.
            holders.append(_GpuUser(pod, container.name, status.container_id.rpartition("/")[2], shares))
    return holders


_Used = Mapping[tuple[str, str, DeviceUUID], tuple[GpuProcess, ...]]
"""Processes by pod UID, container name and GPU."""


def _attribute(holders: Sequence[_GpuUser], sample: NodeSample) -> tuple[_Used, Mapping[DeviceUUID, int]]:
    used: dict[tuple[str, str, DeviceUUID], tuple[GpuProcess, ...]] = {}
    foreign: dict[DeviceUUID, int] = {}
    for gpu in sample.gpus:
        if gpu.processes is None:
            continue
        here = [holder for holder in holders if holder.holds(gpu.uuid)]
        used |= {(holder.pod.metadata.uid, holder.name, gpu.uuid): () for holder in here}
        foreign[gpu.uuid] = 0
        for process in gpu.processes:
            holder = _holder_of(sample.owners.get(process.pid), here)
            if holder is None:
                foreign[gpu.uuid] += process.used_bytes or 0
            else:
                key = (holder.pod.metadata.uid, holder.name, gpu.uuid)
                used[key] = (*used[key], process)
    return used, foreign


def _holder_of(owner: CgroupOwner | None, holders: Sequence[_GpuUser]) -> _GpuUser | None:
    """Finds the holder by container id. A container too new for its pod's status is known if it is the pod's only one
    on the GPU.
    """
    if owner is None:
        return None
    of_pod = [holder for holder in holders if holder.pod.metadata.uid == owner.pod_uid]
    exact = [holder for holder in of_pod if holder.container_id == owner.container_id]
    return exact[0] if exact else of_pod[0] if len(of_pod) == 1 else None


def _rows(
    holder: _GpuUser,
    used: _Used,
    gpus: Mapping[DeviceUUID, GpuSample],
    sample: NodeSample,
    indices: Mapping[DeviceUUID, int],
) -> Iterable[VgpuUsage]:
    metadata = holder.pod.metadata
    region = sample.regions.get((metadata.uid, holder.name))
    devices = {device.uuid: device for device in region.devices} if region is not None else {}
    ordered = sorted(holder.shares, key=lambda share: indices.get(gpu_of(share), len(indices)))
    for position, share in enumerate(ordered):
        uuid = gpu_of(share)
        account = devices.get(uuid)
        processes = used.get((metadata.uid, holder.name, uuid))
        yield VgpuUsage(
            namespace=metadata.namespace,
            pod=metadata.name,
            container=holder.name,
            position=position,
            uuid=uuid,
            memory_limit_bytes=share.memory_mib * _MIB or _whole(gpus.get(uuid)),
            core_limit_percent=share.cores,
            memory_used_bytes=sample.by_driver.get((metadata.uid, holder.name, uuid), _memory_used(processes, account)),
            busy_percent=(busy := _busy(processes, account)),
            pod_uid=metadata.uid,
            peak_percent=None if busy is None else max([busy, *(each.peak_percent for each in processes or ())]),
            region=account,
            last_kernel_unix_seconds=region.last_kernel_unix_seconds if region and account else None,
        )


def _whole(gpu: GpuSample | None) -> int:
    """A share without a size is the whole GPU."""
    return (gpu.memory_total_bytes or 0) if gpu is not None else 0


def _memory_used(processes: Sequence[GpuProcess] | None, account: RegionDevice | None) -> int | None:
    by_driver = None if processes is None else _sum(process.used_bytes for process in processes)
    return account.total_bytes if by_driver is None and account is not None else by_driver


def _busy(processes: Sequence[GpuProcess] | None, account: RegionDevice | None) -> int | None:
    by_driver = None if processes is None else _sum(process.sm_percent for process in processes)
    return account.utilization_percent if by_driver is None and account is not None else by_driver


def _sum(values: Iterable[int | None]) -> int | None:
    """Returns None where the driver keeps one of them to itself."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total
