"""What the parts of the extender read of its configuration."""

from dataclasses import dataclass
from enum import StrEnum

DEFAULT_SCHEDULER_NAME = "topogpu-scheduler"

LONGEST_LOCK_WAIT_SECONDS = 22.0
"""With the wait for the first lists and the write it stays below the 30 s that kube-scheduler waits for an extender."""
SHORTEST_BIND_DEADLINE_SECONDS = 20.0
SLACK_SECONDS = 5.0
"""For a Binding that was long on its way."""
_WRITING_SECONDS = 2.0
"""What a bind has left for its write when the lock comes at the last moment."""


class SettingsError(ValueError):
    """A setting has a value that cannot be used; the message is one sentence."""


class FilterReturns(StrEnum):
    ONE = "one"
    """The best node, its GPUs reserved."""
    ALL = "all"
    """The best nodes, on each its GPUs reserved until kube-scheduler has chosen one."""


class MetricsDetail(StrEnum):
    """What a page has series of: each with those after it."""

    PODS = "pods"
    GPUS = "gpus"
    NODES = "nodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """Times of one running extender, all below kube-scheduler's extender timeout of 30 s."""

    scheduler_name: str = DEFAULT_SCHEDULER_NAME
    filter_returns: FilterReturns = FilterReturns.ONE
    gpu_preemption: bool = False
    """Whether we evict pods of lower priority for pods that lack nothing but GPUs."""
    readyz_requires_leader: bool = False
    kube_scheduler_healthz: str = ""
    """URL on this host; empty where kubelet does not ask us how kube-scheduler is."""
    node_label_selector: str = ""
    """Nodes without these labels are as if they were not there."""
    node_lock_ttl_seconds: float = 300.0
    lock_wait_seconds: float = 18.0
    """How long a bind waits for a lock that another pod holds."""
    sync_wait_seconds: float = 5.0
    """How long `/filter` waits for the first lists before it says that it cannot answer yet."""
    bind_deadline_seconds: float = SHORTEST_BIND_DEADLINE_SECONDS
    binding_seconds: float = 5.0
    """After which an unanswered Binding is sent again, or less where the API server is given less time. The next leader
    waits twice as long for the Bindings of one that crashed.
    """
    reservation_lease_seconds: float = 60.0
    """The longest time between `/filter` and `/bind` for which GPUs are held."""
    bound_lease_seconds: float = 600.0
    """How long a written Binding counts from memory if the watch does not show it."""
    settle_seconds: float = 65.0
    """Until a Binding whose answer was lost is looked for. The API server gives it up with us, but a proxy between may
    hold what was sent for as long as its own time-out, 60 s in most. Given back any sooner, the GPUs could go to two
    pods; only this one pod's wait for it.
    """
    metrics_detail: MetricsDetail = MetricsDetail.PODS
    legacy_metrics: bool = False


def bind_deadline_seconds(lock_wait_seconds: float) -> float:
    """For a bind that may wait so long for a lock."""
    return max(SHORTEST_BIND_DEADLINE_SECONDS, lock_wait_seconds + _WRITING_SECONDS)
