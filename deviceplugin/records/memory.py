"""The memory of a node daemon for a start while the API server is unreachable.

It holds how the node allocates, its GPUs, and the decisions for its pods, as the API server last reported them. It is
used only until the API server answers, and only on this node, within the same boot, while at least one of its GPUs
exists. A pod that is not in it is refused; so is one for which kubelet's records differ.
"""

from collections.abc import Collection, Iterable

import msgspec

from proto.annotations.keys import DEVICES_ALLOCATED
from proto.annotations.node_allocation import AllocationMode
from proto.decoding import decoded
from proto.devices import DeviceUUID
from proto.kubernetes.objects import Node, Pod

FORM = 1
MEMORY_FOLDER = ".topogpu"


class MemoryUnreadable(Exception):
    """The text is not what this release writes; the message is one clause."""


class Memory(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`kubelet` and `runtime` are versions as the Node has them; `gpus` are whole ones, also those not shared."""

    form: int = FORM
    node: str
    boot: str
    """The kernel's id of it."""
    mode: AllocationMode
    kubelet: str
    runtime: str
    gpus: tuple[str, ...]
    pods: tuple[Pod, ...]
    """The node's pods that have a decision and have not ended, if it allocates by slots."""


def memory_of(node: Node, boot: str, mode: AllocationMode, gpus: Collection[DeviceUUID], pods: Iterable[Pod]) -> Memory:
    """Returns the memory. `pods` are the node's as the daemon keeps them: without what may be secret."""
    info = node.status.node_info
    return Memory(
        node=node.metadata.name,
        boot=boot,
        mode=mode,
        kubelet=info.kubelet_version,
        runtime=info.container_runtime_version,
        gpus=tuple(sorted(gpus)),
        # An immediate Allocate needs all pods of the node, so it is refused meanwhile.
        pods=tuple(filter(_is_served, pods)) if mode is AllocationMode.SLOTS else (),
    )


def _is_served(pod: Pod) -> bool:
    return not pod.has_ended and DEVICES_ALLOCATED in pod.metadata.annotations


def encode_memory(memory: Memory) -> bytes:
    return msgspec.json.encode(memory)


def decode_memory(text: bytes) -> Memory:
    """Raises MemoryUnreadable."""
    try:
        memory = decoded(text, Memory)
    except msgspec.DecodeError as error:
        raise MemoryUnreadable(f"cannot be read: {error}") from error
    if memory.form != FORM:
        raise MemoryUnreadable(f"has form {memory.form}, this release reads {FORM}")
    return memory


def why_foreign(memory: Memory, node: str, boot: str, gpus: Collection[DeviceUUID]) -> str:
    """Returns why it does not match this node now, as a clause; empty if it does."""
    if memory.node != node:
        return f"is of node {memory.node}"
    if not boot or memory.boot != boot:
        return "is of an earlier boot"
    if not set(memory.gpus) & set(gpus):
        return "names none of the GPUs that the driver shows"
    strangers = [pod.metadata.name for pod in memory.pods if pod.spec.node_name != node]
    return f"has pods of another node ({strangers[0]})" if strangers else ""
