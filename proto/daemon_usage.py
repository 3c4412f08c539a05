"""The use of one node's GPUs, as its daemon serves it: `/usage` on the port of its metrics. The status page and the
kubectl plugin read it.

Both programs may be of different releases: unknown fields are ignored, and a missing one is "not known".
"""

from types import MappingProxyType

import msgspec

from proto.decoding import decoded
from proto.devices import DeviceUUID
from proto.kubernetes.objects import Object, ObjectMeta, Resource

USAGE_PATH = "/usage"
LARGEST_USAGE_BYTES = 256 * 1024
"""The most bytes of an answer that are read. A row has about 150, and a daemon writes at most 512 of them."""


DAEMON_LABELS = MappingProxyType({"app.kubernetes.io/name": "topogpu", "app.kubernetes.io/component": "device-plugin"})
"""The labels of the daemons' pods. Anyone who can create pods can write them."""
_PORT = "metrics"


class _Port(Object):
    name: str = ""
    container_port: int = 0


class _DaemonContainer(Object):
    ports: tuple[_Port, ...] = ()


class _DaemonSpec(Object):
    node_name: str = ""
    containers: tuple[_DaemonContainer, ...] = ()


class _DaemonStatus(Object):
    pod_ip: str = msgspec.field(name="podIP", default="")


class DaemonPod(Object):
    """A pod of the daemon, as far as it shows where the use is served."""

    metadata: ObjectMeta
    spec: _DaemonSpec = msgspec.field(default_factory=_DaemonSpec)
    status: _DaemonStatus = msgspec.field(default_factory=_DaemonStatus)

    @property
    def port(self) -> int:
        """Returns the port of metrics; 0 without one."""
        ports = (port.container_port for each in self.spec.containers for port in each.ports if port.name == _PORT)
        return next(ports, 0)

    @property
    def address(self) -> str:
        """Returns `10.1.2.3:9394`; empty for a pod that has no address yet, or no port of metrics."""
        ip = self.status.pod_ip
        host = f"[{ip}]" if ":" in ip else ip
        return f"{host}:{self.port}" if ip and self.port else ""


DAEMON_PODS = Resource("v1", "pods", True, DaemonPod)


class UsageUnreadable(Exception):
    """The answer is not the use of a node's GPUs. The message is one sentence."""


class GpuUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """Memory in MiB, with the driver's reserved part, and percent of the time in which the GPU computed; None where the
    driver does not report it.
    """

    memory: int | None = None
    busy: int | None = None


class ContainerUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """A container's use of one GPU. `unused` is the number of seconds in which it was not seen to compute there,
    counted from the daemon's first look at it; None where nothing shows whether it computes.
    """

    pod: str
    """`namespace/name`."""
    container: str
    gpu: DeviceUUID
    memory: int | None = None
    busy: int | None = None
    unused: int | None = None


class NodeUse(msgspec.Struct, frozen=True, omit_defaults=True):
    node: str
    gpus: dict[DeviceUUID, GpuUse] = {}
    containers: tuple[ContainerUse, ...] = ()


def encode_node_use(use: NodeUse) -> bytes:
    return msgspec.json.encode(use)


def decode_node_use(content: bytes, node: str) -> NodeUse:
    """Raises UsageUnreadable, also for the use of another node."""
    try:
        use = decoded(content, NodeUse)
    except msgspec.DecodeError as error:
        raise UsageUnreadable(f"the answer is not the use of GPUs: {error}") from error
    if use.node != node:
        raise UsageUnreadable("the daemon there is another node's")
    return use
