"""Settings that the extender's parts read from its configuration."""

from dataclasses import dataclass, field
from enum import StrEnum
from uuid import uuid4

DEFAULT_SCHEDULER_NAME = "topogpu-scheduler"

SLACK_SECONDS = 5.0
"""The time that a Binding may be delayed on its way."""


class SettingsError(ValueError):
    """A setting has a value that cannot be used. The message is one sentence."""


class FilterReturns(StrEnum):
    ONE = "one"
    """The best node, with its GPUs reserved."""
    ALL = "all"
    """The best nodes. GPUs are reserved on each until kube-scheduler has chosen one."""


class MetricsDetail(StrEnum):
    """The series that a page has. Each value includes those after it."""

    PODS = "pods"
    GPUS = "gpus"
    NODES = "nodes"


class CorePolicy(StrEnum):
    """The time at which libvgpu.so limits cores."""

    DEFAULT = "default"
    """The library decides; nothing is written."""
    FORCE = "force"
    DISABLE = "disable"


class BypassMode(StrEnum):
    """What happens to pods with environment variables that lift limits."""

    OFF = "off"
    AUDIT = "audit"
    """Warn the pod's author."""
    DENY = "deny"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """Times of one running extender, all below kube-scheduler's extender timeout of 30 s."""

    filter_returns: FilterReturns = FilterReturns.ONE
    gpu_preemption: bool = False
    """True if we evict pods of lower priority for pods that lack only GPUs."""
    set_aside_after_seconds: float = 0.0
    """After this time of waiting a node is set aside for a pod, or a group, that needs at least half of its GPUs; 0 if
    none ever is.
    """
    kube_scheduler_healthz: str = ""
    """A URL on this host; empty if kubelet does not probe kube-scheduler through us."""
    node_label_selector: str = ""
    """Nodes without these labels are ignored."""
    node_lock_ttl_seconds: float = 300.0
    lock_wait_seconds: float = 18.0
    """The time that a bind waits for a lock that another pod holds."""
    sync_wait_seconds: float = 5.0
    """The time that `/filter` waits for the first lists before it returns an error."""
    bind_deadline_seconds: float = 20.0
    """Together with the wait for the first lists it is below the 30 s that kube-scheduler waits for an extender. A bind
    that gets the lock at the last moment has the rest for the write.
    """
    binding_seconds: float = 5.0
    """After this time an unanswered Binding is sent again, or earlier if the API server has less time. The next leader
    waits twice as long for the Bindings of a crashed one.
    """
    reservation_lease_seconds: float = 60.0
    """The longest time between `/filter` and `/bind` for which GPUs are held."""
    bound_lease_seconds: float = 600.0
    """The time for which a written Binding counts from memory if the watch does not show it."""
    settle_seconds: float = 65.0
    """After this time a Binding whose answer was lost is looked for. The API server gives it up when we do. But a proxy
    between them may hold the request until its own timeout, 60 s in most. If the GPUs were given back earlier, two pods
    could get them; so only this pod's GPUs wait.
    """
    metrics_detail: MetricsDetail = MetricsDetail.PODS
    legacy_metrics: bool = False

    def held_until(self, now: float, lease_seconds: float) -> float:
        """Returns when a reservation ends whose bind begins now: after the longest bind, plus the lease."""
        return now + self.bind_deadline_seconds + lease_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """`identity` is this host's name. The pod's own name and namespace are empty outside a pod."""

    elects: bool = False
    """False means that this replica always leads, and that the Lease is ignored."""
    name: str = ""
    namespace: str = ""
    identity: str = ""
    process: str = field(default_factory=lambda: str(uuid4()), compare=False)
    """Distinguishes the processes of a host, but not a process from its successor with the same journal."""
    pod_name: str = ""
    pod_namespace: str = ""
