"""Writes metric families with many series as Prometheus text, also with the names and labels from before HAMi 2.9.

The client library keeps several objects for each series of a page and takes ten times as long. The old names are those
that HAMi's scheduler writes with its flag `--legacy-metrics` (cmd/scheduler/metrics.go of Project-HAMi/HAMi).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress

from program.words import escaped_label

Rows = Iterable[tuple[Sequence[str], float]]
"""Values of the labels, and the value of the series."""


@dataclass(frozen=True, slots=True)
class Gauges:
    """One family. `rows` are computed at each request; `constant` labels are the same in each row."""

    name: str
    documentation: str
    labels: tuple[str, ...]
    rows: Callable[[], Rows]
    constant: tuple[tuple[str, str], ...] = ()

    def text(self) -> Iterator[str]:
        """Yields the text, line by line."""
        yield f"# HELP {self.name} {self.documentation}\n# TYPE {self.name} gauge\n"
        pairs = [*((label, "%s") for label in self.labels), *self.constant]
        labels = ",".join(f'{label}="{value}"' for label, value in pairs)
        series = f"{self.name}{{{labels}}} %s\n" if labels else f"{self.name} %s\n"
        quotes = 2 * len(pairs)
        for values, value in self.rows():
            line = series % (*values, value)
            # Few values need escaping, and one check per line costs less than one per value.
            if "\\" in line or line.count('"') != quotes or line.count("\n") != 1:
                line = series % (*map(escaped_label, values), value)
            yield line


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
