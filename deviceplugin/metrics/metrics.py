"""Metrics with prometheus_client: events are counted as they happen, states are read at each scrape (edge)."""

from collections.abc import Callable, Iterator
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from deviceplugin.metrics.series import (
    ages_family,
    build_family,
    gpu_families,
    plain_family,
    state_families,
    usage_families,
)
from deviceplugin.metrics.view import DaemonView
from deviceplugin.usage.used import NodeSample, Usage, node_usage

CONTENT_TYPE = CONTENT_TYPE_LATEST
_CALL_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class KubeletCall(StrEnum):
    ALLOCATE = "Allocate"
    PREFER = "GetPreferredAllocation"
    PRE_START = "PreStartContainer"


class Outcome(StrEnum):
    OK = "ok"
    REFUSED = "refused"
    """A refusal with a sentence for people."""
    FAILED = "failed"
    """A failure by a defect of ours."""


class Metrics:
    """All of one daemon. `now` is Unix time in seconds. Only `exposition` may run on another thread than the event
    loop's.
    """

    def __init__(self, *, now: Callable[[], float]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # it adds an unused series to every counter
        self._now = now
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._calls = Histogram(
            "topogpu_kubelet_call_duration_seconds",
            "Time to answer kubelet.",
            ("call",),
            buckets=_CALL_SECONDS,
            registry=registry,
        )
        self._allocations = Counter(
            "topogpu_allocations",
            "Allocate and PreStartContainer calls by how they ended and how containers are given GPUs.",
            ("call", "outcome", "strategy"),
            registry=registry,
        )
        self._registrations = Counter(
            "topogpu_kubelet_registrations", "Registrations with kubelet.", ("outcome",), registry=registry
        )
        self._patches = Counter(
            "topogpu_node_patches", "Patches of this node's annotations.", ("outcome",), registry=registry
        )
        self._health_events = Counter(
            "topogpu_health_events", "Events that changed or may change a GPU's health.", ("kind",), registry=registry
        )
        changes = "Limits of GPU memory that the driver was given, by what happened: set, resized, restored or refused."
        self._memory_limits = Counter("topogpu_memory_limit_changes", changes, ("outcome",), registry=registry)
        self._evictions = Counter(
            "topogpu_evictions",
            "Attempts to evict pods from GPUs that stay unhealthy: evicted, refused (by a PodDisruptionBudget or the "
            "API server), spared (a pod that is never evicted), needless (it has gone, or the GPU is well), paused "
            "(too many within the hour).",
            ("outcome",),
            registry=registry,
        )
        self._nvml = Histogram(
            "topogpu_nvml_read_duration_seconds",
            "Time to read the driver.",
            ("reading",),
            buckets=_CALL_SECONDS,
            registry=registry,
        )
        self._reported_at: float | None = None
        self._seen_at: dict[str, float] = {}

    # What happens.

    def called(self, call: KubeletCall, seconds: float) -> None:
        """Kubelet was answered, one way or the other."""
        self._calls.labels(call.value).observe(seconds)

    def allocated(self, call: KubeletCall, outcome: Outcome, strategy: str) -> None:
        """`strategy` is `slots`, `immediate` or, for MIG devices with a resource of their own, `instance`."""
        self._allocations.labels(call.value, outcome.value, strategy).inc()

    def registered(self, taken: bool) -> None:
        self._registrations.labels(_outcome(taken).value).inc()

    def reported(self, taken: bool) -> None:
        """Records the answer to a patch of the Node."""
        self._patches.labels(_outcome(taken).value).inc()
        if taken:
            self._reported_at = self._now()

    def saw(self, resource: str) -> None:
        """Records that the watch of `nodes` or `pods` brought something."""
        self._seen_at[resource] = self._now()

    def health_event(self, kind: str) -> None:
        """`kind` is one of a few words, never a number or a name."""
        self._health_events.labels(kind).inc()

    def memory_limit(self, outcome: str) -> None:
        """`outcome` is set, restored or refused."""
        self._memory_limits.labels(outcome).inc()

    def eviction(self, outcome: str) -> None:
        """`outcome` is evicted, refused, spared, needless or paused."""
        self._evictions.labels(outcome).inc()

    def nvml_read(self, reading: str, seconds: float) -> None:
        """`reading` is `machine`, `usage` or another of a few words."""
        self._nvml.labels(reading).observe(seconds)

    # What is.

    def exposition(self, view: DaemonView, sample: NodeSample | None, sample_age_seconds: float | None) -> bytes:
        """Returns the page for Prometheus; without a sample it has only what the daemon knows by itself."""
        return generate_latest(_Page(lambda: self._families(view, sample, sample_age_seconds)))

    def _families(self, view: DaemonView, sample: NodeSample | None, age: float | None) -> Iterator[Metric]:
        now = self._now()
        indices = {device.uuid: device.index for device in view.devices}
        usage = Usage() if sample is None else node_usage(view.pods.values(), sample, indices)
        known = sample or NodeSample()
        yield build_family()
        yield from gpu_families(view, known)
        yield from usage_families(view, usage, now)
        yield from state_families(view, known, usage)
        yield plain_family("topogpu_sample_age_seconds", "Age of the GPU readings on this page.", age)
        yield plain_family(
            "topogpu_node_last_report_timestamp_seconds",
            "When this node's annotations were last written, in Unix time.",
            self._reported_at,
        )
        yield ages_family(
            "topogpu_watch_age_seconds",
            "Time since the API server's watch last brought something.",
            "resource",
            ((resource, now - at) for resource, at in sorted(self._seen_at.copy().items())),
        )
        yield from self._registry.collect()


def _outcome(taken: bool) -> Outcome:
    return Outcome.OK if taken else Outcome.FAILED


class _Page(Collector):
    def __init__(self, families: Callable[[], Iterator[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return self._families()
