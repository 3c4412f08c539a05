"""The tables of `docs/metrics.md`, from what both programs declare: `python -m tests.metrics_reference`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric

from deviceplugin.metrics import metrics as daemon
from deviceplugin.metrics.telemetry import AGE, AGE_DOCUMENTATION, HOLDER, HOLDER_DOCUMENTATION
from deviceplugin.usage.telemetry import Quantity
from scheduler_ext.metrics import counters as extender
from scheduler_ext.metrics.families import families
from scheduler_ext.metrics.gauges import Gauges, legacy
from tests.deviceplugin.metrics_view import view
from tests.scheduler_ext.metrics.test_metrics import seen
from tests.settings_manual import filled

TELEMETRY_LABELS = (
    *("gpu", "UUID", "pci_bus_id", "device", "modelName", "GPU_I_PROFILE", "GPU_I_ID", "Hostname"),
    *("DCGM_FI_DRIVER_VERSION", "namespace", "pod", "container"),
)
"""Labels of DCGM's families; those of MIG instances and of containers only where there is one."""

_SERIES = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
_ZONE = "zone"
_MONITORS = {
    "hami_host_gpu_memory_used_bytes": "HostGPUMemoryUsage",
    "hami_host_gpu_utilization_ratio": "HostCoreUtilization",
    "hami_vgpu_memory_used_bytes": "vGPU_device_memory_usage_in_bytes",
    "hami_vgpu_memory_limit_bytes": "vGPU_device_memory_limit_in_bytes",
    "hami_container_device_memory_bytes": "Device_memory_desc_of_container",
    "hami_container_device_utilization_ratio": "Device_utilization_desc_of_container",
    "hami_container_last_kernel_elapsed_seconds": "Device_last_kernel_of_container",
}
"""The names before 2.9 of HAMi's monitor (cmd/vGPUmonitor/metrics.go of Project-HAMi/HAMi)."""
PAGE = Path(__file__).parent.parent / "docs" / "metrics.md"
_HEAD = "| name | type | labels | what | HAMi before 2.9 |\n|---|---|---|---|---|"
_DCGM_HEAD = "| name | type | what |\n|---|---|---|"
_SHARED_LABELS = {
    "*GPU*": ("device_index", "device_uuid"),
    "*node's GPU*": ("node", "device_index", "device_uuid", "device_type"),
    "*share*": ("namespace", "pod", "container", "vdevice_index", "device_uuid"),
}
"""Labels that many families have together, by the words for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    name: str
    """As Prometheus shows it: with `_total` where it is a counter."""
    kind: str
    labels: tuple[str, ...]
    documentation: str

    @property
    def series(self) -> tuple[str, ...]:
        """The names under which it can be asked for."""
        endings = () if self.kind == "counter" else _SERIES.get(self.kind, ())
        return tuple(f"{self.name}{ending}" for ending in endings) or (self.name,)


def daemon_families() -> tuple[Family, ...]:
    metrics = daemon.Metrics(now=lambda: 0.0)
    return tuple(_declared(metrics._families(view(), None, None), metrics._registry))


def telemetry_families() -> tuple[Family, ...]:
    """Of the daemon's page in DCGM exporter's names."""
    held = ("UUID", "namespace", "pod", "container")
    told = (
        *((quantity.value, quantity.kind, TELEMETRY_LABELS, quantity.documentation) for quantity in Quantity),
        (HOLDER, "gauge", held, HOLDER_DOCUMENTATION),
        (AGE, "gauge", (), AGE_DOCUMENTATION),
    )
    return tuple(Family(name=name, kind=kind, labels=labels, documentation=text) for name, kind, labels, text in told)


def extender_families() -> tuple[Family, ...]:
    metrics = extender.ExtenderMetrics()
    of_the_cluster = (_family(each) for each in families(seen()))
    return (*of_the_cluster, *_declared(iter(metrics._registry.collect()), metrics._registry))


def reference() -> str:
    """The tables."""
    daemon, extender = (_table(_HEAD, each, _row) for each in (daemon_families(), extender_families()))
    nvidias = [family for family in telemetry_families() if family.name.startswith("DCGM_")]
    dcgm = _table(_DCGM_HEAD, tuple(family for family in telemetry_families() if family not in nvidias), _dcgm_row)
    named = f"NVIDIA documents these: {', '.join(f'`{family.name}`' for family in nvidias)}."
    of_gpus = f"Series of GPUs have the labels {_code(TELEMETRY_LABELS)}"
    shared = f"{of_gpus}; a holder has `UUID`, `namespace`, `pod` and `container`."
    together = "; ".join(f"{words} is {_code(labels)}" for words, labels in _SHARED_LABELS.items())
    return "\n".join(
        (
            f"In place of labels that many families have, {together}.\n",
            f"### Of the node daemon\n\n{daemon}",
            f"### Of the node daemon, at /metrics/dcgm\n\n{named}\n\n{shared}\n\n{dcgm}",
            f"### Of the extender\n\n{extender}",
        )
    )


def page() -> str:
    """The document as it should be."""
    return filled(PAGE.read_text("utf-8"), {"metrics": reference()}, "make docs-metrics")


def _table(head: str, families: tuple[Family, ...], row: Callable[[Family], str]) -> str:
    return f"{head}\n" + "\n".join(map(row, families)) + "\n"


def _declared(families: Iterator[Metric], registry: CollectorRegistry) -> Iterator[Family]:
    """A family tells its labels while it has no series as well."""
    counted = {
        collector._name: collector._labelnames
        for collector in registry._collector_to_names
        if isinstance(collector, MetricWrapperBase)
    }
    for family in families:
        if not family.name.startswith("process_"):
            labels = counted.get(family.name, getattr(family, "_labelnames", ()))
            name = family.name + "_total" * (family.type == "counter")
            yield Family(name=name, kind=family.type, labels=tuple(labels), documentation=family.documentation)


def _family(gauges: Gauges) -> Family:
    return Family(name=gauges.name, kind="gauge", labels=gauges.labels, documentation=gauges.documentation)


def _row(family: Family) -> str:
    own = tuple(label for label in family.labels if label != _ZONE)
    labels = next((words for words, each in _SHARED_LABELS.items() if set(each) == set(own)), _code(own))
    before = _MONITORS.get(family.name) or _schedulers(family.name)
    shown = f"`{before}`" if before else ""
    return f"| `{family.name}` | {family.kind} | {labels} | {family.documentation} | {shown} |"


def _code(labels: tuple[str, ...]) -> str:
    return ", ".join(f"`{label}`" for label in labels)


def _dcgm_row(family: Family) -> str:
    return f"| `{family.name}` | {family.kind} | {family.documentation} |"


def _schedulers(name: str) -> str:
    """The name before 2.9 of HAMi's scheduler, empty if there was none."""
    return next((family.name for family in legacy(Gauges(name, "", (), list))), "")


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
