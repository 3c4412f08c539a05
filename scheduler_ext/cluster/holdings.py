"""What one bound pod holds, read from its annotation with no trust in it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from proto.annotations.errors import AnnotationError
from proto.annotations.keys import DEVICES_ALLOCATED
from proto.annotations.pod_devices import decode_pod_devices
from proto.devices import ContainerShares, Device, DeviceUUID, PodShares
from proto.kubernetes.objects import Pod
from scheduler_ext.cluster.accounting import Footprints, effective
from scheduler_ext.requests import ContainerKind, container_kinds, containers, gpu_count

_ENDED = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A pod's part of a node's GPUs. `unreadable` is the text of an annotation nobody could decode."""

    node: str
    namespace: str
    footprints: Footprints = field(default_factory=dict)
    unreadable: str = ""
    wanted: int = 0
    """The most GPUs one of its containers asks for."""
    problem: str = ""


def read_holding(pod: Pod) -> Holding | None:
    """None unless the pod is bound, has devices and still runs or may yet run; a terminating pod still holds them."""
    value = pod.metadata.annotations.get(DEVICES_ALLOCATED, "")
    if not pod.spec.node_name or not value or pod.status.phase in _ENDED:
        return None
    node, namespace = pod.spec.node_name, pod.metadata.namespace or "default"
    try:
        kinds, shares = _aligned(pod, value)
    except AnnotationError as error:
        wanted = max((gpu_count(container) for container in containers(pod)), default=0)
        return Holding(node=node, namespace=namespace, unreadable=value, wanted=wanted, problem=str(error))
    return Holding(node=node, namespace=namespace, footprints=effective(kinds, shares))


def suspected(holding: Holding, devices: Sequence[Device]) -> frozenset[DeviceUUID]:
    """The GPUs an unreadable holding may be about: those it names, or all of them when it names too few."""
    named = frozenset(device.uuid for device in devices if device.uuid in holding.unreadable)
    if len(named) >= max(holding.wanted, 1):
        return named
    return frozenset(device.uuid for device in devices)


def _aligned(pod: Pod, value: str) -> tuple[tuple[ContainerKind, ...], PodShares]:
    """Containers and their shares, one by one.

    HAMi 2.10 leaves out the entries of containers without GPUs, so entries are matched to the containers that ask for
    GPUs when their numbers agree, else by position; entries that match nothing count as running all at once.
    """
    kinds = container_kinds(pod)
    written = decode_pod_devices(DEVICES_ALLOCATED, value)
    filled = [entry for entry in written if entry]
    asking = [position for position, container in enumerate(containers(pod)) if gpu_count(container)]
    if len(filled) == len(asking):
        shares: list[ContainerShares] = [()] * len(kinds)
        for position, entry in zip(asking, filled, strict=True):
            shares[position] = entry
        return kinds, tuple(shares)
    if len(written) >= len(kinds) and not any(written[len(kinds) :]):
        return kinds, written[: len(kinds)]
    return (ContainerKind.APP,) * len(filled), tuple(filled)
