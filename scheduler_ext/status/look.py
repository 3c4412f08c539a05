"""The findings of one look at the cluster. Values only: another thread makes the page from them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler_ext.capacity.largest import Largest
from scheduler_ext.cluster.alone import NodeAlone
from scheduler_ext.cluster.log import LogEntry
from scheduler_ext.cluster.pod_index import PodName
from scheduler_ext.cluster.queue import QueuedPod
from scheduler_ext.cluster.snapshot import NodeUsage
from scheduler_ext.status.why import WhyWaiting


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLook:
    """One node with what pods hold of it. `names` and `reserved` are of these pods, by UID."""

    usage: NodeUsage
    alone: NodeAlone
    names: Mapping[str, PodName]
    reserved: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingLook:
    """A pod that fitted on no node. `words` is the last answer about it, as in its event; `why` is None before the
    first search.
    """

    pod: QueuedPod
    words: str
    why: WhyWaiting | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """`monotonic` and `at` (seconds since 1970) are the time of the look. Nodes that are not named are as before."""

    monotonic: float
    at: float
    problem: str = ""
    """The reason why no decision is possible in this replica; empty if one is."""
    nodes: Mapping[str, NodeLook] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)
    """All nodes that should offer GPUs and do not, and why."""
    gone: tuple[str, ...] = ()
    """Nodes that are no longer registered."""
    waiting: tuple[WaitingLook, ...] = ()
    """All pods that wait, up to a bound."""
    waiting_total: int = 0
    fits: tuple[Largest, ...] = ()
    happened: tuple[LogEntry, ...] = ()
    """The events since the look before, as far as they are remembered."""
