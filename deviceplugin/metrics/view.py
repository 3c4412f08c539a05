"""The daemon's view of itself at one moment, for metrics and probes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from deviceplugin.machine.readings import MissingGpu
from proto.annotations.node_limits import NodeLimits
from proto.devices import Device, DeviceUUID
from proto.kubernetes.objects import Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonView:
    node_name: str
    devices: tuple[Device, ...] = ()
    """Physical GPUs, by NVML index."""
    missing: tuple[MissingGpu, ...] = ()
    xids: Mapping[DeviceUUID, int] = field(default_factory=dict)
    """The last XID of each GPU that is listened to, 0 for none."""
    pods: Mapping[str, Pod] = field(default_factory=dict)
    """The pods of this node, by UID."""
    pods_known: bool = False
    mode_known: bool
    """False until it is chosen how containers are given their GPUs: nothing is registered before."""
    registered: bool = False
    """True if the kubelet that runs now has registered the plugin."""
    gpus_known: bool = False
    gpu_problem: str = ""
    """The reason why no GPU can be read; empty while they can."""
    simulated: bool = False
    """The GPUs are not real."""
    api_problem: str = ""
    """The reason why pods and node may be old; empty while the API server answers."""
    lasting_gpus: int = 0
    """GPUs that have been unhealthy for as long as remediation waits."""
    stranded_pods: int = 0
    """Pods on them."""
    limits: NodeLimits | None = None
    """The program that holds containers to a part of a GPU; None while that is not known."""
    held_by_driver: int = 0
    """Containers whose GPU memory the driver limits."""
    lost_by_driver: int = 0
    """Running containers whose limit the driver does not take."""
    waiting: int = 0
    """Containers whose GPU tasks must wait for others."""


@dataclass(frozen=True, slots=True)
class Readiness:
    ready: bool
    sentence: str


def readiness(view: DaemonView) -> Readiness:
    """Returns whether the daemon is ready to serve an Allocate. A node without GPUs is: there is nothing to serve."""
    if awaited := _awaited(view):
        return Readiness(False, awaited)
    if not view.devices:
        return Readiness(True, view.gpu_problem or "this node has no GPU to share")
    counts = f"{len(view.devices)} GPUs, {sum(device.healthy for device in view.devices)} of them healthy"
    return Readiness(True, "; ".join([counts, *(f"{gpu.name} cannot be used: {gpu.problem}" for gpu in view.missing)]))


def _awaited(view: DaemonView) -> str:
    """Returns what the daemon waits for; empty if it is ready."""
    if view.api_problem:
        return view.api_problem
    if not view.pods_known:
        return f"the pods of node {view.node_name} are not known yet"
    if not view.gpus_known:
        return "the NVIDIA driver has not answered yet"
    if view.devices and not view.mode_known:
        return f"it is not chosen yet how node {view.node_name} allocates, by slots or immediately"
    if view.devices and not view.registered:
        return "kubelet has not accepted the registration yet"
    return ""
