"""`docs/metrics-reference.md`, from the families that both programs declare: `python -m tests.metrics_reference`."""

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric

from deviceplugin.metrics import metrics as daemon
from deviceplugin.metrics.telemetry import AGE, AGE_DOCUMENTATION, HOLDER, HOLDER_DOCUMENTATION, TELEMETRY_LABELS
from deviceplugin.usage.telemetry import FAMILIES
from scheduler_ext import metrics as extender
from scheduler_ext.gauges import Gauges
from scheduler_ext.legacy_families import legacy
from scheduler_ext.metric_families import families
from tests.deviceplugin.metrics_view import view
from tests.scheduler_ext.test_metrics import seen

_UNITS = {"_bytes": "bytes", "_seconds": "seconds", "_celsius": "°C", "_watts": "watts", "_ratio": "ratio"}
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
    "hami_mig_device_info": "MigInfo",
}
"""The names before 2.9 of HAMi's monitor (cmd/vGPUmonitor/metrics.go of Project-HAMi/HAMi)."""
_INTRODUCTION = """\
# Every metric

Every metric family of both programs, with its type, unit and labels. `make docs-metrics` writes this page from what
the programs declare. How they are served and counted: [the node daemon](metrics.md),
[the extender](metrics.md#metrics-of-the-extender). Alerts: [alerts.md](alerts.md).

A family whose name begins with `hami_` has the name, labels and unit of the same family in HAMi 2.9 and later, and
besides the labels shown the constant label `zone="vGPU"` (but for `hami_build_info`). HAMi has nothing like those that
begin with `topogpu_`. Beside these are the usual `process_` families of Prometheus' clients.
"""
_HEAD = "| name | type | unit | labels | what | HAMi before 2.9 |\n|---|---|---|---|---|---|"


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
        *(
            (quantity.value, family.kind, TELEMETRY_LABELS, family.documentation)
            for quantity, family in FAMILIES.items()
        ),
        (HOLDER, "gauge", held, HOLDER_DOCUMENTATION),
        (AGE, "gauge", (), AGE_DOCUMENTATION),
    )
    return tuple(Family(name=name, kind=kind, labels=labels, documentation=text) for name, kind, labels, text in told)


def extender_families() -> tuple[Family, ...]:
    metrics = extender.ExtenderMetrics()
    of_the_cluster = (_family(each) for each in families(seen()))
    return (*of_the_cluster, *_declared(iter(metrics._registry.collect()), metrics._registry))


def reference() -> str:
    """The document."""
    tables = {
        "The node daemon": daemon_families(),
        "The node daemon, at /metrics/dcgm": telemetry_families(),
        "The extender": extender_families(),
    }
    parts = [f"## {title}\n\n{_HEAD}\n" + "\n".join(map(_row, families)) + "\n" for title, families in tables.items()]
    return "\n".join([_INTRODUCTION, *parts])


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
    unit = next((unit for ending, unit in _UNITS.items() if family.name.endswith(ending)), "")
    labels = ", ".join(f"`{label}`" for label in family.labels if label != _ZONE)
    before = _MONITORS.get(family.name) or _schedulers(family.name)
    shown = f"`{before}`" if before else ""
    return f"| `{family.name}` | {family.kind} | {unit} | {labels} | {family.documentation} | {shown} |"


def _schedulers(name: str) -> str:
    """The name before 2.9 of HAMi's scheduler, empty if there was none."""
    return next((family.name for family in legacy(Gauges(name, "", (), list))), "")


if __name__ == "__main__":
    print(reference(), end="")
