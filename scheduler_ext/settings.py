"""Settings that the extender's parts read from its configuration."""

from dataclasses import dataclass
from enum import StrEnum

DEFAULT_SCHEDULER_NAME = "topogpu-scheduler"

LONGEST_LOCK_WAIT_SECONDS = 22.0
"""Together with the wait for the first lists and the write it is below the 30 s that kube-scheduler waits for an
extender.
"""
SHORTEST_BIND_DEADLINE_SECONDS = 20.0
SLACK_SECONDS = 5.0
"""The time that a Binding may be delayed on its way."""
_WRITING_SECONDS = 2.0
"""Time left for the write when a bind gets the lock at the last moment."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """Times of one running extender, all below kube-scheduler's extender timeout of 30 s."""

    scheduler_name: str = DEFAULT_SCHEDULER_NAME
    filter_returns: FilterReturns = FilterReturns.ONE
    gpu_preemption: bool = False
    """True if we evict pods of lower priority for pods that lack only GPUs."""
    readyz_requires_leader: bool = False
    kube_scheduler_healthz: str = ""
    """A URL on this host; empty if kubelet does not probe kube-scheduler through us."""
    node_label_selector: str = ""
    """Nodes without these labels are ignored."""
    node_lock_ttl_seconds: float = 300.0
    lock_wait_seconds: float = 18.0
    """The time that a bind waits for a lock that another pod holds."""
    sync_wait_seconds: float = 5.0
    """The time that `/filter` waits for the first lists before it returns an error."""
    bind_deadline_seconds: float = SHORTEST_BIND_DEADLINE_SECONDS
    binding_seconds: float = 5.0
    """After this time an unanswered Binding is sent again, or earlier if the API server has less time. The next leader
    waits twice as long for the Bindings of a crashed one.
    """
    reservation_lease_seconds: float = 60.0
    """The longest time between `/filter` and `/bind` for which GPUs are held."""
    bound_lease_seconds: float = 600.0
    """How long a written Binding counts from memory if the watch does not show it."""
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


def bind_deadline_seconds(lock_wait_seconds: float) -> float:
    """Returns the deadline in seconds of a bind that may wait this long for a lock."""
    return max(SHORTEST_BIND_DEADLINE_SECONDS, lock_wait_seconds + _WRITING_SECONDS)
