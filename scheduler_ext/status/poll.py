"""The findings of one look at the cluster. Values only: another thread makes the page from them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from proto.daemon_usage import NodeUse
from scheduler_ext.capacity.largest import Largest
from scheduler_ext.cluster.history import LogEntry
from scheduler_ext.cluster.pod_index import PodName
from scheduler_ext.cluster.snapshot import NodeUsage
from scheduler_ext.cluster.usage import NodeAlone
from scheduler_ext.status.waiting import WaitingGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePoll:
    """One node with what pods hold of it. `names` are of these pods, by UID."""

    usage: NodeUsage
    alone: NodeAlone
    names: Mapping[str, PodName]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The state of this replica: its version, the address of its API server, and whether it leads. `leader` is the host
    name that holds the Lease, which is its pod's name; empty without an election, and while none holds it.
    """

    problem: str = ""
    """The reason why no decision is possible here; empty if one is."""
    stale: str = ""
    """The reason why the cluster may be another one by now; empty while the API server answers."""
    synced: bool = True
    """False before nodes, pods and quotas are listed: what is missing may still come."""
    version: str = ""
    cluster: str = ""
    leads: bool = True
    leader: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Uses:
    """The last reading of each node's daemon, by node."""

    nodes: Mapping[str, NodeUse] = field(default_factory=dict)
    problem: str = ""
    """The reason why some or all are missing; empty if none is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """`monotonic` and `at` (seconds since 1970) are the time of the poll. Nodes that are not named are as before."""

    monotonic: float
    at: float
    standing: Standing = Standing()
    nodes: Mapping[str, NodePoll] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)
    """All nodes that should offer GPUs and do not, and why."""
    gone: tuple[str, ...] = ()
    """Nodes that are no longer registered."""
    waiting: tuple[WaitingGroup, ...] = ()
    """The pods that wait, up to a bound."""
    waiting_total: int = 0
    fits: tuple[Largest, ...] = ()
    uses: Uses = Uses()
    happened: tuple[LogEntry, ...] = ()
    """The events since the poll before, as far as they are remembered."""
