"""The node daemon's settings, as plain values."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from proto.annotations import keys
from proto.annotations.keys import RESOURCE_COUNT
from proto.annotations.node_limits import Backend

LIMITS_FOLDER = "topogpu-limits"
"""The folder, in that of the CDI specs, with one folder for each container that the driver limits."""


class HamiScheduler(StrEnum):
    """The oldest of HAMi's schedulers that must understand this node."""

    NONE = "off"
    V2_4 = "2.4"
    """Reads 7 text fields and wants its handshake answered."""
    V2_7 = "2.7"
    """Reads 9 text fields and wants its handshake answered."""
    V2_9 = "2.9"
    """Reads JSON, but reads it again only after a handshake (or when kubelet's count changes)."""

    @property
    def asks(self) -> bool:
        return self in (HamiScheduler.V2_4, HamiScheduler.V2_7)


class RequestedAllocation(StrEnum):
    """The way in which Allocate finds the pod that it serves."""

    AUTO = "auto"
    """Allocates by slots if the node can, else immediately."""
    SLOTS = "slots"
    IMMEDIATE = "immediate"


class Feedback(StrEnum):
    """The rules that the daemon gives GPU tasks through HAMi-core's regions."""

    OFF = "off"
    PRIORITY = "priority"
    """Tasks wait for those of higher priority on their GPU."""
    CONTENTION = "contention"
    """The same; limits of cores also hold while several containers compute on a GPU, as in HAMi's monitor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """The host's folders and the driver's library."""

    root: str = "/"
    """The folder at which the host's folders are mounted."""
    driver_root: str = ""
    """The host's folder below which the driver is installed; empty where the runtime adds it to this process."""
    dev_root: str = "/"
    """The host's folder above `dev`."""
    nvml_library: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletSettings:
    """The folder of kubelet's sockets, the resource that is served there, and deadlines."""

    root: str = "/var/lib/kubelet"
    resource_name: str = RESOURCE_COUNT
    poll_seconds: float = 1.0
    """Seconds between two looks at the sockets; a new socket of kubelet's is seen sooner."""
    register_seconds: float = 5.0
    """Deadline of one Register call."""
    unheard_seconds: float = 5.0
    """Seconds for which a kubelet that does not listen may be restarting, before the plugin registers again."""
    settled_seconds: float = 2.0
    """Seconds from the end of a daemon that served the same until the one that took over registers once more."""
    numa_hints: bool = False
    """Kubelet gets each GPU's NUMA node although its configuration is not known to use it."""
    configuration: str = "/var/lib/kubelet/config.yaml"
    """The host's paths of kubelet's configuration file and drop-in folders, with commas; they may be missing."""

    @property
    def kubelet_socket(self) -> str:
        return f"{self.plugins}/kubelet.sock"

    @property
    def pod_resources_socket(self) -> str:
        return f"{self.root}/pod-resources/kubelet.sock"

    @property
    def plugins(self) -> str:
        """Returns the folder of all plugins' sockets."""
        return f"{self.root}/device-plugins"


@dataclass(frozen=True, slots=True, kw_only=True)
class TotalNames:
    """The names of resources that pods request beside GPUs; the Node has totals of them."""

    memory: str = keys.RESOURCE_MEMORY
    memory_percentage: str = keys.RESOURCE_MEMORY_PERCENTAGE
    cores: str = keys.RESOURCE_CORES
    priority: str = keys.RESOURCE_PRIORITY

    def __iter__(self) -> Iterator[str]:
        return iter((self.memory, self.memory_percentage, self.cores, self.priority))


class Remedy(StrEnum):
    """The measures against GPUs that stay unhealthy. Each reports them."""

    REPORT = "report"
    """The Node's condition reports them."""
    EVICT_WAITING = "evict-waiting"
    """Pods that wait for such a GPU are evicted."""
    EVICT = "evict"
    """So are those that run on one."""
    TAINT_ALL = "taint-all"
    """The Node is tainted while all of its GPUs stay unhealthy."""
    TAINT_ANY = "taint-any"


REMEDIATION_LEASE = "topogpu-remediation"
"""The Lease on which the daemons of all nodes count their evictions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemediationSettings:
    """The measures against GPUs that stay unhealthy, their times and their limits."""

    remedies: tuple[Remedy, ...] = ()
    after: timedelta = timedelta(minutes=10)
    """The time for which a GPU must have been unhealthy."""
    at_once: int = 1
    """Pods of the node that may be on their way out at a time."""
    per_hour: int = 10
    """Evictions from the node."""
    cluster_per_hour: int = 30
    """Evictions by the daemons of all nodes."""
    lease_namespace: str = "topogpu-system"
    """The namespace of the Lease `REMEDIATION_LEASE`, which is that of the daemon's pod."""

    @property
    def reports(self) -> bool:
        return bool(self.remedies)

    @property
    def evicts(self) -> bool:
        """Returns whether pods that wait for such a GPU are evicted, at least."""
        return Remedy.EVICT in self.remedies or Remedy.EVICT_WAITING in self.remedies

    @property
    def recovery_seconds(self) -> float:
        """Returns how long a GPU must have no fault before it is healthy again."""
        return self.after.total_seconds() / 10

    @property
    def most_after(self) -> timedelta:
        """Returns how long GPUs must have been unhealthy before evictions while most GPUs of the node are: that many
        failures at once suggest a fault of the driver.
        """
        return 6 * self.after


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """The settings of the daemon of one node."""

    node_name: str = ""
    hook_path: str = "/usr/local"
    limits: frozenset[Backend] = frozenset(Backend)
    """The means that hold newcomers to their parts of GPUs, as far as they are there."""
    allows_unheld: bool = False
    """Parts of GPUs to which nothing holds a container are given out too."""
    feedback: Feedback = Feedback.OFF
    allocate_seconds: float = 2.0
    """Seconds that one Allocate may wait for news of its pod."""
    prefer_seconds: float = 0.5
    """Seconds that one GetPreferredAllocation may wait."""
    allocation: RequestedAllocation = RequestedAllocation.AUTO
    cdi_directory: str = "/var/run/cdi"
    """The folder to which the specs of slots are written."""
    pre_start_seconds: float = 10.0
    """Seconds that one PreStartContainer may look for a proof; kubelet gives up after 30 s and tries again later."""
    read_seconds: float = 30.0
    """Seconds between two readings of the GPUs."""
    retry_seconds: float = 5.0
    """Seconds between two tries while there is no driver or no GPU."""
    hami_scheduler: HamiScheduler = HamiScheduler.NONE
    gpu_sums: bool = False
    """The Node has sums of GPU memory and cores; else these are taken off it."""
    feature_labels: bool = False
    """The Node has labels of its GPUs in the names of GPU feature discovery; else ours are taken off it."""

    @property
    def limits_folder(self) -> str:
        """Returns the folder with one folder for each container that the driver limits. It is the same on the host."""
        return f"{self.cdi_directory}/{LIMITS_FOLDER}"
