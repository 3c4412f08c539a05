"""The use of one node's GPUs, as its daemon serves it to the status page: `/usage` on the port of its metrics.

Both programs may be of different releases: unknown fields are ignored, and a missing one is "not known".
"""

import msgspec

from proto.devices import DeviceUUID

USAGE_PATH = "/usage"
LARGEST_USAGE_BYTES = 256 * 1024
"""The most bytes of an answer that are read. A row has about 150, and a daemon writes at most 512 of them."""


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


_DECODER = msgspec.json.Decoder(NodeUse)


def encode_node_use(use: NodeUse) -> bytes:
    return msgspec.json.encode(use)


def decode_node_use(content: bytes) -> NodeUse:
    """Raises UsageUnreadable."""
    try:
        return _DECODER.decode(content)
    except msgspec.DecodeError as error:
        raise UsageUnreadable(f"the answer is not the use of GPUs: {error}") from error
