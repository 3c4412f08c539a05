"""The memory of a node daemon for a start while the API server is unreachable.

It holds how the node allocates, its GPUs, and the decisions for its pods, as the API server last reported them. It is
used only until the API server answers, and only on this node, within the same boot, while at least one of its GPUs
exists. A pod that is not in it is refused; so is one for which kubelet's records differ.
"""

from collections.abc import Collection, Iterable

import msgspec

from proto.annotations.keys import DEVICES_ALLOCATED, MEMORY_RESIZE
from proto.annotations.node_allocation import AllocationMode
from proto.decoding import decoded
from proto.devices import DeviceUUID
from proto.environment import is_judged
from proto.kubernetes.objects import Container, ContainerStatus, Node, ObjectMeta, Pod, PodSpec, PodStatus

_ANNOTATIONS = (DEVICES_ALLOCATED, MEMORY_RESIZE)
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
    """The node's pods that have not ended, if it allocates by slots, cut down to what serving them takes."""


def memory_of(
    node: Node, boot: str, mode: AllocationMode, gpus: Collection[DeviceUUID], pods: Iterable[Pod | None]
) -> Memory:
    """Returns the memory. `pods` are those of the node, as `memorable` has them."""
    info = node.status.node_info
    return Memory(
        node=node.metadata.name,
        boot=boot,
        mode=mode,
        kubelet=info.kubelet_version,
        runtime=info.container_runtime_version,
        gpus=tuple(sorted(gpus)),
        # An immediate Allocate needs all pods of the node, so it is refused meanwhile.
        pods=tuple(pod for pod in pods if pod is not None) if mode is AllocationMode.SLOTS else (),
    )


def encode_memory(memory: Memory) -> bytes:
    return msgspec.json.encode(memory)


def decode_memory(text: bytes) -> Memory:
    """Raises MemoryUnreadable."""
    try:
        memory = decoded(text, Memory)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
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


def memorable(pod: Pod) -> Pod | None:
    """Returns the pod without what may be secret, such as variables and commands. None without a decision, and once it
    has ended.
    """
    if pod.has_ended or DEVICES_ALLOCATED not in pod.metadata.annotations:
        return None
    metadata = pod.metadata
    return Pod(
        metadata=ObjectMeta(
            name=metadata.name,
            namespace=metadata.namespace,
            uid=metadata.uid,
            resource_version=metadata.resource_version,
            annotations={key: metadata.annotations[key] for key in _ANNOTATIONS if key in metadata.annotations},
            deletion_timestamp=metadata.deletion_timestamp,
        ),
        spec=PodSpec(
            node_name=pod.spec.node_name,
            init_containers=[_reduced_container(each) for each in pod.spec.init_containers],
            containers=[_reduced_container(each) for each in pod.spec.containers],
        ),
        status=PodStatus(
            phase=pod.status.phase,
            init_container_statuses=[_reduced_status(each) for each in pod.status.init_container_statuses],
            container_statuses=[_reduced_status(each) for each in pod.status.container_statuses],
        ),
    )


def _reduced_container(container: Container) -> Container:
    return Container(
        name=container.name,
        env=[variable for variable in container.env if is_judged(variable.name)],
        resources=container.resources,
        restart_policy=container.restart_policy,
    )


def _reduced_status(status: ContainerStatus) -> ContainerStatus:
    return ContainerStatus(name=status.name, container_id=status.container_id)
