"""The `hami_` families a second time, with the names and labels from before HAMi 2.9.

They are those that HAMi's scheduler writes with its flag `--legacy-metrics` (cmd/scheduler/metrics.go of
Project-HAMi/HAMi).
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import compress

from scheduler_ext.metrics.gauges import Gauges, Rows

_OF_GPU = {
    "node": "nodeid",
    "device_uuid": "deviceuuid",
    "device_index": "deviceidx",
    "device_type": "devicetype",
    "device_cores": "devicecores",
    "device_memory_limit": "devicememorylimit",
}
_OF_QUOTA = {"namespace": "quotanamespace", "quota_name": "quotaName", "limit": "limit"}
_OF_POD = {
    "namespace": "podnamespace",
    "node": "nodename",
    "pod": "podname",
    "container_index": "containeridx",
    "device_uuid": "deviceuuid",
}
_LEGACY: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "hami_gpu_memory_limit_bytes": ("GPUDeviceMemoryLimit", _OF_GPU),
    "hami_gpu_core_limit_ratio": ("GPUDeviceCoreLimit", _OF_GPU),
    "hami_gpu_memory_allocated_bytes": ("GPUDeviceMemoryAllocated", _OF_GPU),
    "hami_gpu_shared_count": ("GPUDeviceSharedNum", _OF_GPU),
    "hami_gpu_core_allocated_ratio": ("GPUDeviceCoreAllocated", _OF_GPU),
    "hami_node_gpu_overview": ("nodeGPUOverview", _OF_GPU),
    "hami_node_gpu_memory_allocated_ratio": ("nodeGPUMemoryPercentage", _OF_GPU),
    "hami_node_gpu_mig_instance_info": ("nodeGPUMigInstance", {**_OF_GPU, "mig_uuid": "migname"}),
    "hami_resource_quota_used": ("QuotaUsed", _OF_QUOTA),
    "hami_vgpu_memory_allocated_bytes": ("vGPUMemoryAllocated", _OF_POD),
    "hami_vgpu_core_allocated_ratio": ("vGPUCoreAllocated", _OF_POD),
}
"""Maps a current name to the old name, and to the old labels by the current ones."""


def legacy(family: Gauges) -> Iterator[Gauges]:
    """Yields the family under its old name, if it had one."""
    if family.name in _LEGACY:
        name, labels = _LEGACY[family.name]
        kept = [label in labels for label in family.labels]
        renamed = tuple(labels[label] for label in family.labels if label in labels)
        yield Gauges(name, family.documentation, renamed, partial(_shown, family, kept), family.constant)


def _shown(family: Gauges, kept: Sequence[bool]) -> Rows:
    return ((tuple(compress(values, kept)), value) for values, value in family.rows())
