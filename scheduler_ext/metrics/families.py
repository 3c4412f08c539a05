"""The cluster as Prometheus families.

Names, labels and the constant label `zone` of the `hami_` families are those of HAMi's scheduler
(cmd/scheduler/metrics.go of Project-HAMi/HAMi). Ours begin with `topogpu_`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from proto.annotations.mig_allocations import MigAllocation
from proto.build import BUILD_LABELS, build_labels
from scheduler_ext.capacity.unused import idle_gpus
from scheduler_ext.cluster.accounting import Footprint
from scheduler_ext.cluster.pod_index import PodName
from scheduler_ext.cluster.records import PodRecord
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage, Quota, Snapshot, least_left
from scheduler_ext.metrics.gauges import Gauges, Rows, legacy
from scheduler_ext.requests import ResourceNames
from scheduler_ext.settings import MetricsDetail

MIB = 1 << 20
_ZONE = ("zone", "vGPU")
_GPU = ("node", "device_uuid", "device_index", "device_type")
_GPU_AND_CORES = ("node", "device_uuid", "device_index", "device_cores", "device_type")
_OVERVIEW = ("node", "device_uuid", "device_index", "device_cores", "device_memory_limit", "device_type")
_MIG = (
    *("node", "device_uuid", "device_index", "mig_uuid", "profile"),
    *("gpu_instance_id", "compute_instance_id", "placement_start", "placement_size"),
)
_VGPU = ("namespace", "node", "pod", "container_index", "device_uuid")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsInput:
    """The input of one page. `records` and `names` are by pod UID."""

    snapshot: Snapshot
    records: Mapping[str, PodRecord]
    names: Mapping[str, PodName]
    resources: ResourceNames
    reservations: int
    kept: int
    waiting: int
    leads: bool
    synced: bool
    problems: int
    detail: MetricsDetail = MetricsDetail.PODS
    """The detail of the metrics. Without metrics for pods, `records` and `names` may be empty."""
    legacy_names: bool = False
    """True if HAMi's names from before 2.9 are written as well."""


def families(seen: MetricsInput) -> Iterator[Gauges]:
    yield _build()
    yield from _nodes(seen)
    of_pods = (_mig_instances, _vgpus) if seen.detail is MetricsDetail.PODS else ()
    of_gpus = () if seen.detail is MetricsDetail.NODES else (_gpus,)
    for family in chain.from_iterable(families(seen) for families in (*of_gpus, _quotas, *of_pods)):
        yield family
        if seen.legacy_names:
            yield from legacy(family)
    yield from _state(seen)


def _build() -> Gauges:
    return Gauges("hami_build_info", "Version of the extender.", BUILD_LABELS, lambda: [(build_labels(), 1)])


def _nodes(seen: MetricsInput) -> Iterator[Gauges]:
    nodes = seen.snapshot.nodes

    def rows(of: Callable[[GpuUsage], int]) -> Callable[[], Rows]:
        return lambda: (((name,), sum(map(of, usage.gpus))) for name, usage in nodes.items())

    for name, documentation, of in (
        ("topogpu_node_gpus", "GPUs of the node.", lambda _: 1),
        (
            "topogpu_node_memory_limit_bytes",
            "Memory of the node's GPUs that can be given out.",
            lambda gpu: gpu.device.memory_mib * MIB,
        ),
        (
            "topogpu_node_memory_allocated_bytes",
            "Memory of the node's GPUs that is given out or reserved.",
            lambda gpu: gpu.memory_mib * MIB,
        ),
    ):
        yield Gauges(name, documentation, ("node",), rows(of))
    yield Gauges(
        "topogpu_node_core_allocated_ratio",
        "Share of the cores of the node's GPUs that is given out or reserved, 0 to 1.",
        ("node",),
        lambda: (((name,), _core_share(usage.gpus)) for name, usage in nodes.items()),
    )
    yield Gauges(
        "topogpu_node_undecided_pods",
        "Pods that hold GPUs of the node without a decision: bound by another scheduler, or before this one ran.",
        ("node",),
        lambda: (((name,), len(usage.undecided)) for name, usage in nodes.items()),
    )


_Nodes = Sequence[tuple[str, NodeUsage]]


# No lists of rows: they would be large, and each would make the garbage collector look at all of them.
def _each_gpu(nodes: _Nodes) -> Iterator[tuple[str, GpuUsage]]:
    return ((node, gpu) for node, usage in nodes for gpu in usage.gpus)


def _labelled(nodes: _Nodes) -> Iterator[tuple[tuple[str, ...], GpuUsage]]:
    return ((_labels(node, gpu), gpu) for node, gpu in _each_gpu(nodes))


def _gpu_limits(nodes: _Nodes) -> Iterator[Gauges]:
    yield _hami(
        "hami_gpu_memory_limit_bytes",
        "Memory of the GPU that can be given out.",
        _GPU,
        lambda: ((labels, gpu.device.memory_mib * MIB) for labels, gpu in _labelled(nodes)),
    )
    yield _hami(
        "hami_gpu_core_limit_ratio",
        "Cores of the GPU that can be given out, in percent of one GPU.",
        _GPU,
        lambda: ((labels, gpu.device.cores) for labels, gpu in _labelled(nodes)),
    )


def _core_share(gpus: Sequence[GpuUsage]) -> float:
    offered = sum(gpu.device.cores for gpu in gpus)
    return sum(gpu.cores for gpu in gpus) / offered if offered else 0.0


def _gpus(seen: MetricsInput) -> Iterator[Gauges]:
    nodes = sorted(seen.snapshot.nodes.items())
    yield from _gpu_limits(nodes)
    yield _hami(
        "hami_gpu_memory_allocated_bytes",
        "Memory of the GPU that is given out or reserved.",
        _GPU_AND_CORES,
        lambda: ((_labels(node, gpu, str(gpu.cores)), gpu.memory_mib * MIB) for node, gpu in _each_gpu(nodes)),
    )
    yield _hami(
        "hami_gpu_shared_count",
        "Containers that share the GPU.",
        _GPU,
        lambda: ((labels, gpu.replicas) for labels, gpu in _labelled(nodes)),
    )
    yield _hami(
        "hami_gpu_core_allocated_ratio",
        "Cores of the GPU that are given out or reserved, in percent of one GPU.",
        _GPU,
        lambda: ((labels, gpu.cores) for labels, gpu in _labelled(nodes)),
    )
    yield _hami(
        "hami_node_gpu_overview",
        "Memory of the GPU that is given out or reserved, in bytes, with its limits as labels.",
        _OVERVIEW,
        lambda: (
            (_labels(node, gpu, str(gpu.cores), str(gpu.device.memory_mib)), gpu.memory_mib * MIB)
            for node, gpu in _each_gpu(nodes)
        ),
    )
    yield _hami(
        "hami_node_gpu_memory_allocated_ratio",
        "Share of the GPU's memory that is given out or reserved, 0 to 1.",
        _GPU,
        lambda: (
            (labels, gpu.memory_mib / gpu.device.memory_mib)
            for labels, gpu in _labelled(nodes)
            if gpu.device.memory_mib
        ),
    )


def _mig_instances(seen: MetricsInput) -> Iterator[Gauges]:
    """Yields the instances that exist: a daemon that makes instances writes their names on the pod."""
    held = [record for record in seen.records.values() if record.instances]
    index = {
        (node, gpu.device.uuid): str(gpu.device.index)
        for node in {record.node for record in held} & seen.snapshot.nodes.keys()
        for gpu in seen.snapshot.nodes[node].gpus
    }
    rows = [
        ((record.node, allocation.gpu, index.get((record.node, allocation.gpu), ""), *_instance(allocation)), 1)
        for record in held
        for allocation in record.instances
    ]
    yield _hami("hami_node_gpu_mig_instance_info", "1 for each MIG instance that serves a pod.", _MIG, lambda: rows)


def _instance(allocation: MigAllocation) -> tuple[str, ...]:
    real = (allocation.mig_uuid, allocation.gpu_instance, allocation.compute_instance)
    uuid, *ids = ("" if each is None else str(each) for each in real)
    place = allocation.placement
    return (uuid, allocation.profile, *ids, str(place.start), str(place.size))


def _labels(node: str, gpu: GpuUsage, *before_type: str) -> tuple[str, ...]:
    device = gpu.device
    return (node, device.uuid, str(device.index), *before_type, device.type)


def _quotas(seen: MetricsInput) -> Iterator[Gauges]:
    limits = [
        (namespace, name, limit, used)
        for namespace, quotas in sorted(seen.snapshot.quotas.items())
        if (quota := least_left(quotas)) is not None
        for name, limit, used in _limits(quota, seen.resources)
    ]
    yield _hami(
        "hami_resource_quota_used",
        "What the pods of a quota hold of a resource: MiB of memory, percent of cores, shares of GPUs.",
        ("namespace", "quota_name", "limit"),
        lambda: (((namespace, name, str(limit)), used) for namespace, name, limit, used in limits),
    )
    yield _hami(
        "hami_resource_quota_limit",
        "What the pods of a quota may hold of a resource: MiB of memory, percent of cores, shares of GPUs.",
        ("namespace", "quota_name"),
        lambda: (((namespace, name), limit) for namespace, name, limit, _ in limits),
    )


def _limits(quota: Quota, names: ResourceNames) -> Iterator[tuple[str, int, int]]:
    """Yields resource, limit and use."""
    if quota.memory_mib is not None:
        yield names.memory, quota.memory_mib, quota.used.memory_mib
    if quota.cores is not None:
        yield names.cores, quota.cores, quota.used.cores
    if quota.gpus is not None:
        yield names.count, quota.gpus, quota.used.replicas


def _vgpus(seen: MetricsInput) -> Iterator[Gauges]:
    """Yields one row per pod and GPU: as in HAMi, all containers have index 0."""

    def held() -> Iterator[tuple[tuple[str, ...], Footprint]]:
        return (
            ((name.namespace, record.node, name.name, "0", uuid), footprint)
            for uid, record in seen.records.items()
            if (name := seen.names.get(uid)) is not None
            for uuid, footprint in record.gpus.footprints.items()
        )

    yield _hami(
        "hami_vgpu_memory_allocated_bytes",
        "Memory of the GPU that the pod holds.",
        _VGPU,
        lambda: ((labels, footprint.memory_mib * MIB) for labels, footprint in held()),
    )
    yield _hami(
        "hami_vgpu_core_allocated_ratio",
        "Cores of the GPU that the pod holds, in percent of one GPU.",
        _VGPU,
        lambda: ((labels, footprint.cores) for labels, footprint in held()),
    )


def _state(seen: MetricsInput) -> Iterator[Gauges]:
    snapshot = seen.snapshot
    aside = [usage for usage in snapshot.nodes.values() if usage.set_aside is not None]
    for name, documentation, value in (
        ("topogpu_nodes_registered", "Nodes whose GPUs are given out.", len(snapshot.nodes)),
        ("topogpu_nodes_unregistered", "Nodes without GPUs that can be given out.", len(snapshot.unregistered)),
        ("topogpu_reservations", "Decisions that are not seen bound yet.", seen.reservations),
        ("topogpu_kept_rooms", "Pods for which others are evicted and room is kept.", seen.kept),
        ("topogpu_set_aside_nodes", "Nodes that are set aside for pods that have waited for long.", len(aside)),
        (
            "topogpu_set_aside_idle_gpus",
            "GPUs of these nodes that are free: what setting them aside costs now.",
            sum(map(idle_gpus, aside)),
        ),
        ("topogpu_waiting_pods", "Pods that ask for GPUs and have no node.", seen.waiting),
        (
            "topogpu_problems",
            "Nodes, pods and quotas that cannot be read or used; their events have the reason.",
            seen.problems,
        ),
        ("topogpu_leader", "1 while this replica takes decisions.", int(seen.leads)),
        ("topogpu_synced", "1 once nodes, pods and quotas are known.", int(seen.synced)),
    ):
        yield _one(name, documentation, value)


def _one(name: str, documentation: str, value: int) -> Gauges:
    return Gauges(name, documentation, (), lambda: [((), float(value))])


def _hami(name: str, documentation: str, labels: Sequence[str], rows: Callable[[], Rows]) -> Gauges:
    return Gauges(name, documentation, tuple(labels), rows, (_ZONE,))
