"""The daemon's view and the node's sample as Prometheus families.

Names, labels and the constant label `zone` of the `hami_` families are those of HAMi's monitor
(cmd/vGPUmonitor/metrics.go of Project-HAMi/HAMi), whose ratios run from 0 to 100. Ours begin with `topogpu_`.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from deviceplugin.metrics.view import DaemonView
from deviceplugin.usage.used import GpuSample, NodeSample, Usage, VgpuUsage
from proto.build import BUILD_LABELS, build_labels

MOST_VGPUS = 512
"""Rows per family; a node has room for a few hundred, and what is beyond is counted."""
_ZONE = ("zone", "vGPU")
_GPU = ("device_index", "device_uuid", "device_type")
_NODE_GPU = ("node", *_GPU)
_OUR_GPU = ("device_index", "device_uuid")
_VGPU = ("namespace", "pod", "container", "vdevice_index", "device_uuid")

T = TypeVar("T")
_Labelled = Sequence[tuple[Sequence[str], T]]
"""Values, each with the labels of its series."""
_Rows = Iterable[tuple[Sequence[str], float | None]]


def build_family() -> Metric:
    return _family("hami_build_info", "Version of the node daemon.", BUILD_LABELS, [(build_labels(), 1)])


_HAMI_GPU_FAMILIES = (
    ("memory_used_bytes", "GPU memory in use, with the driver's reserved part.", "memory_used_bytes"),
    ("utilization_ratio", "Time in which the GPU computed, 0 to 100.", "busy_percent"),
    ("temperature_celsius", "Temperature of the GPU.", "temperature_celsius"),
    ("power_usage_watts", "Power drawn by the GPU.", "power_watts"),
)
"""The end of the name, the documentation, and what of a sample it shows."""
_GPU_FAMILIES = (
    ("topogpu_gpu_memory_bytes", "Memory of the GPU.", "memory_total_bytes"),
    ("topogpu_gpu_nvlinks", "NVLinks of the GPU.", "nvlinks"),
    ("topogpu_gpu_nvlinks_active", "NVLinks of the GPU that are up.", "nvlinks_active"),
)
_REGION_FAMILIES = (
    ("container_device_memory_bytes", "GPU memory the container uses by HAMi-core's own account.", "total_bytes"),
    ("vgpu_memory_context_bytes", "Part of HAMi-core's account: CUDA contexts.", "context_bytes"),
    ("vgpu_memory_module_bytes", "Part of HAMi-core's account: loaded modules.", "module_bytes"),
    ("vgpu_memory_buffer_bytes", "Part of HAMi-core's account: allocated buffers.", "buffer_bytes"),
)


def gpu_families(view: DaemonView, sample: NodeSample) -> Iterator[Metric]:
    """Yields series per GPU; none for what the driver does not report."""
    samples = {gpu.uuid: gpu for gpu in sample.gpus}
    gpus = [(device, samples.get(device.uuid, GpuSample(uuid=device.uuid))) for device in view.devices]
    named = [((str(device.index), device.uuid, device.type), gpu) for device, gpu in gpus]
    placed = [((view.node_name, *labels), gpu) for labels, gpu in named]
    for name, documentation, shown in _HAMI_GPU_FAMILIES:
        yield _hami(f"hami_host_gpu_{name}", documentation, _NODE_GPU, _shown(placed, shown))
    yield _hami(
        "hami_host_gpu_memory_controller_utilization_ratio",
        "Time in which GPU memory was read or written, 0 to 100.",
        _GPU,
        _shown(named, "memory_busy_percent"),
    )
    yield from _our_gpus(view, [(labels[:2], gpu) for labels, gpu in named])


def _our_gpus(view: DaemonView, short: _Labelled[GpuSample]) -> Iterator[Metric]:
    yield _family(
        "topogpu_gpu_healthy",
        "1 while the GPU is given to containers. A GPU that reports no UUID has its place there.",
        _OUR_GPU,
        (
            *(((str(device.index), device.uuid), device.healthy) for device in view.devices),
            *((("" if gpu.index is None else str(gpu.index), gpu.uuid or gpu.name), 0) for gpu in view.missing),
        ),
    )
    yield _family(
        "topogpu_gpus_expected",
        "GPUs that the driver counts or that are on the PCI bus, whether they answer or not.",
        (),
        [((), len(view.devices) + len(view.missing))],
    )
    for name, documentation, shown in _GPU_FAMILIES:
        yield _family(name, documentation, _OUR_GPU, _shown(short, shown))


def usage_families(view: DaemonView, usage: Usage, now: float) -> Iterator[Metric]:
    """Yields series per share of a container; `now` is Unix time in seconds."""
    rows = [(_vgpu_labels(vgpu), vgpu) for vgpu in usage.vgpus[:MOST_VGPUS]]
    yield from _hami_shares(rows)
    regions = [(labels, vgpu.region) for labels, vgpu in rows if vgpu.region is not None]
    for name, documentation, shown in _REGION_FAMILIES:
        yield _hami(f"hami_{name}", documentation, _VGPU, _shown(regions, shown))
    yield _hami(
        "hami_container_last_kernel_elapsed_seconds",
        "Time since the container launched its last kernel.",
        _VGPU,
        ((labels, _elapsed(vgpu.last_kernel_unix_seconds, now)) for labels, vgpu in rows),
    )
    yield _family(
        "topogpu_vgpu_core_limit_ratio",
        "Share of the GPU's SM time the container was given, 1 being a whole GPU; missing without a limit.",
        _VGPU,
        ((labels, vgpu.core_limit_percent / 100 or None) for labels, vgpu in rows),
    )
    yield _family(
        "topogpu_gpu_foreign_memory_used_bytes",
        "GPU memory used by processes of no container that holds the GPU, such as the host's.",
        _OUR_GPU,
        (((str(gpu.index), gpu.uuid), usage.foreign_bytes.get(gpu.uuid)) for gpu in view.devices),
    )


def _hami_shares(rows: _Labelled[VgpuUsage]) -> Iterator[Metric]:
    yield _hami(
        "hami_vgpu_memory_used_bytes",
        "GPU memory the container's processes use, by the driver if it reports it, else by HAMi-core.",
        _VGPU,
        _shown(rows, "memory_used_bytes"),
    )
    yield _hami(
        "hami_vgpu_memory_limit_bytes",
        "GPU memory the container was given.",
        _VGPU,
        ((labels, vgpu.memory_limit_bytes or None) for labels, vgpu in rows),
    )
    yield _hami(
        "hami_container_device_utilization_ratio",
        "Share of the GPU's SM time the container used, 0 to 100, by the driver if it reports it, else by HAMi-core.",
        _VGPU,
        _shown(rows, "busy_percent"),
    )


def state_families(view: DaemonView, sample: NodeSample, usage: Usage) -> Iterator[Metric]:
    """Yields the daemon's own state, and what it left out."""
    for name, documentation, value in (*_state(view), *_left_out(sample, usage)):
        yield _family(name, documentation, (), [((), value)])


def _state(view: DaemonView) -> Sequence[tuple[str, str, float]]:
    return (
        ("topogpu_kubelet_registered", "1 while kubelet knows this daemon.", view.registered),
        (
            "topogpu_api_server_stale",
            "1 while the API server is away and the last state serves.",
            bool(view.api_problem),
        ),
        (
            "topogpu_gpus_simulated",
            "1 where the GPUs of this node are simulated: none of them is real.",
            view.simulated,
        ),
        (
            "topogpu_limits_enforced",
            "1 while something holds containers to their part of a GPU: HAMi-core, or the driver to memory.",
            view.limits is not None and bool(view.limits.backends),
        ),
        (
            "topogpu_unenforced_shares_allowed",
            "1 while containers may get parts of GPUs to which nothing holds them, with HAMi-core of several GPUs.",
            view.limits is not None and view.limits.allows_unheld,
        ),
        (
            "topogpu_memory_limits_by_driver",
            "Containers whose GPU memory the driver limits.",
            view.held_by_driver,
        ),
        (
            "topogpu_memory_limits_lost",
            "Running containers whose limit of GPU memory the driver does not take.",
            view.lost_by_driver,
        ),
        ("topogpu_containers_waiting", "Containers whose GPU tasks wait for tasks of higher priority.", view.waiting),
        ("topogpu_pods_known", "1 once the pods of this node have been listed.", view.pods_known),
        ("topogpu_pods", "Pods of this node.", len(view.pods)),
        (
            "topogpu_gpus_unhealthy_long",
            "GPUs that have been unhealthy for as long as remediation waits.",
            view.lasting_gpus,
        ),
        ("topogpu_pods_on_unhealthy_gpus", "Pods that have one of these GPUs.", view.stranded_pods),
    )


def _left_out(sample: NodeSample, usage: Usage) -> Sequence[tuple[str, str, float]]:
    dropped = max(0, len(usage.vgpus) - MOST_VGPUS)
    return (
        ("topogpu_pods_unreadable", "Pods whose GPU annotations cannot be read.", usage.unreadable_pods),
        ("topogpu_vgpus_dropped", "Shares left out here because there are too many.", dropped),
        ("topogpu_regions_unreadable", "HAMi-core regions that cannot be read.", sample.unreadable_regions),
        (
            "topogpu_regions_dropped",
            "HAMi-core regions not looked at yet: there are too many, or reading takes too long.",
            sample.regions_left_out,
        ),
    )


def ages_family(name: str, documentation: str, label: str, seconds: Iterable[tuple[str, float]]) -> Metric:
    return _family(name, documentation, (label,), (((what,), age) for what, age in seconds))


def plain_family(name: str, documentation: str, value: float | None) -> Metric:
    return _family(name, documentation, (), [((), value)])


def _shown(rows: _Labelled[T], field: str) -> _Rows:
    return ((labels, getattr(each, field)) for labels, each in rows)


def _hami(name: str, documentation: str, labels: Sequence[str], rows: _Rows) -> Metric:
    zone, here = _ZONE
    return _family(name, documentation, (*labels, zone), (((*values, here), value) for values, value in rows))


def _family(name: str, documentation: str, labels: Sequence[str], rows: _Rows) -> Metric:
    family = GaugeMetricFamily(name, documentation, labels=labels)
    for values, value in rows:
        if value is not None:
            family.add_metric(values, value)
    return family


def _vgpu_labels(vgpu: VgpuUsage) -> Sequence[str]:
    return (vgpu.namespace, vgpu.pod, vgpu.container, str(vgpu.position), vgpu.uuid)


def _elapsed(since: int | None, now: float) -> float | None:
    return None if since is None else max(0.0, now - since)
