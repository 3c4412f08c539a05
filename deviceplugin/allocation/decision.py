"""Decisions about pods: reads them, checks whether this node can give them out, and adds them up.

The sum is the second check behind the scheduler: no GPU is given out beyond its capacity, whatever was decided. The
capacity of a GPU is what its node advertises, scaling of memory and cores included.
"""

from collections.abc import Container as Members
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from deviceplugin.pod_results import PodResults
from program.words import enumerated
from proto.annotations.errors import AnnotationError
from proto.annotations.keys import DEVICES_ALLOCATED
from proto.annotations.pod_devices import aligned, decode_pod_devices
from proto.devices import ContainerShares, Device, DeviceUUID, PodShares
from proto.kubernetes.objects import Container, Pod
from proto.quantity import readable_quantity


def decided_devices(pod: Pod, key: str, resource: str) -> PodShares:
    """Returns the shares that annotation `key` gives each container. Containers request GPUs by `resource`. Raises
    AnnotationError.
    """
    value = pod.metadata.annotations.get(key)
    if value is None:
        raise AnnotationError(key, "", "missing")
    containers = pod.all_containers
    counts = [gpus_requested(container, resource) for container in containers]
    return aligned(_decoded(key, value, len(containers)), counts)


@lru_cache(maxsize=1024)
def _decoded(key: str, value: str, containers: int) -> PodShares:
    """Reads a decision, cached: each call of kubelet reads those of most pods of the node. Raises AnnotationError."""
    return decode_pod_devices(key, value, containers)


def unfit(
    held: ContainerShares, inventory: Mapping[DeviceUUID, Device], problems: Mapping[DeviceUUID, str] | None = None
) -> str:
    """Returns why these GPUs cannot be given out; empty if they can. `problems` are the reasons of unhealthy GPUs."""
    if len({share.uuid for share in held}) < len(held):
        return "one GPU was decided twice for the same container"
    for share in held:
        device = inventory.get(share.uuid)
        if device is None:
            return f"{share.uuid} is not a GPU of this node"
        if not device.healthy:
            return ": ".join(filter(None, (f"{share.uuid} is unhealthy", (problems or {}).get(share.uuid))))
        if share.memory_mib > device.memory_mib:
            return f"{share.memory_mib} MiB were decided of {share.uuid}, which has {device.memory_mib}"
        if share.cores > device.cores:
            return f"{share.cores} % of the cores were decided of {share.uuid}, which has {device.cores}"
    return ""


def gpus_requested(container: Container, resource: str) -> int:
    """Returns how many GPUs the container requests, 0 if that cannot be read."""
    limits, requests = container.resources.limits, container.resources.requests
    return readable_quantity(limits.get(resource, requests.get(resource, 0)))


@dataclass(frozen=True, slots=True)
class TakenPart:
    """Part of one GPU."""

    containers: int = 0
    memory_mib: int = 0
    cores: int = 0

    def __add__(self, other: "TakenPart") -> "TakenPart":
        return TakenPart(
            self.containers + other.containers, self.memory_mib + other.memory_mib, self.cores + other.cores
        )

    def __or__(self, other: "TakenPart") -> "TakenPart":
        """Returns the larger of each amount."""
        return TakenPart(
            max(self.containers, other.containers),
            max(self.memory_mib, other.memory_mib),
            max(self.cores, other.cores),
        )

    def __str__(self) -> str:
        return f"{self.memory_mib} MiB, {self.cores} %"


Holds = Mapping[DeviceUUID, TakenPart]
"""The part of each GPU that one pod holds."""


class SecondCount:
    """Adds up what the pods of this node hold. `resource` is the one by which containers request GPUs."""

    def __init__(self, resource: str) -> None:
        self._resource = resource
        self._holders = PodResults[Mapping[DeviceUUID, Device], tuple[Pod, Holds]](
            lambda pod, inventory: (pod, held_by(pod, inventory, resource))
        )

    def exceeded(
        self, pod: Pod, pods: Mapping[str, Pod], inventory: Mapping[DeviceUUID, Device], served: Members[str]
    ) -> str:
        """Returns why a GPU would be over capacity with this pod beside the others, as a sentence; empty if none would.

        `pods` are the node's, by UID. Those other than `pod` count from when they were `served` (UIDs), or a container
        of them was created, until they have ended. A decision that cannot be read counts nothing: where it is the pod's
        own, that is refused elsewhere.
        """
        holders = self._holders.of(pods, inventory)
        for uuid, own in held_by(pod, inventory, self._resource).items():
            device = inventory[uuid]
            beside = [(other, held[uuid]) for other, held in holders if uuid in held and _counts(other, pod, served)]
            total = sum((held for _, held in beside), own)
            if total | _all_of(device) != _all_of(device):
                named = sorted(((other.full_name, held) for other, held in beside), key=lambda each: each[0])
                names = enumerated([f"{name} ({held})" for name, held in named])
                has = f"{device.memory_mib} MiB, {device.cores} % and room for {device.replicas} containers"
                beside_them = f" beside {names}" if named else ""
                what = f"{uuid} has {has}, but {total} for {total.containers} were decided: for this pod ({own})"
                return f"{what}{beside_them}"
        return ""


def _counts(other: Pod, pod: Pod, served: Members[str]) -> bool:
    uid = other.metadata.uid
    return uid != pod.metadata.uid and lives(other) and (uid in served or has_begun(other))


def lives(pod: Pod) -> bool:
    """Returns whether the pod's containers may run, also while it is being deleted."""
    return not pod.has_ended


def has_begun(pod: Pod) -> bool:
    """Returns whether a container of the pod was created."""
    return any(each.container_id for each in pod.all_statuses)


def live_holds(resource: str) -> PodResults[Mapping[DeviceUUID, Device], Holds]:
    """Returns what each pod holds while its containers may run."""
    return PodResults(lambda pod, inventory: held_by(pod, inventory, resource) if lives(pod) else {})


def held_by(pod: Pod, inventory: Mapping[DeviceUUID, Device], resource: str) -> Holds:
    """Returns the most that the pod holds of each GPU at one time; never more than the extender books.

    Init containers run one after the other beside the sidecars before them, app containers beside all sidecars. Those
    that have ended count too: a new sandbox of the pod runs them again.
    """
    try:
        decided: PodShares = decided_devices(pod, DEVICES_ALLOCATED, resource)
    except AnnotationError:
        return {}
    running: dict[DeviceUUID, TakenPart] = {}
    most: dict[DeviceUUID, TakenPart] = {}
    apps = len(pod.spec.init_containers)
    for position, (container, shares) in enumerate(zip(pod.all_containers, decided, strict=True)):
        ends = position < apps and not container.is_sidecar
        for share in shares:
            if share.uuid in inventory:
                memory = share.memory_mib or inventory[share.uuid].memory_mib
                held = running.get(share.uuid, TakenPart()) + TakenPart(1, memory, share.cores)
                most[share.uuid] = most.get(share.uuid, TakenPart()) | held
                if not ends:
                    running[share.uuid] = held
    return most


def _all_of(device: Device) -> TakenPart:
    return TakenPart(device.replicas, device.memory_mib, device.cores)
