"""What a pod holds of each GPU, and for how long."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from proto.devices import DeviceUUID, PodShares
from proto.kubernetes.objects import Container, ContainerStatus, Pod
from scheduler_ext.requests import ContainerKind, ContainerNeed


@dataclass(frozen=True, slots=True)
class Footprint:
    """Part of one GPU."""

    slots: int = 0
    memory_mib: int = 0
    cores: int = 0

    def __add__(self, other: "Footprint") -> "Footprint":
        return Footprint(self.slots + other.slots, self.memory_mib + other.memory_mib, self.cores + other.cores)

    def __sub__(self, other: "Footprint") -> "Footprint":
        return Footprint(self.slots - other.slots, self.memory_mib - other.memory_mib, self.cores - other.cores)

    def __or__(self, other: "Footprint") -> "Footprint":
        """The larger of each dimension."""
        return Footprint(
            max(self.slots, other.slots), max(self.memory_mib, other.memory_mib), max(self.cores, other.cores)
        )


NOTHING = Footprint()
Footprints = Mapping[DeviceUUID, Footprint]


def held_by(pod: Pod, kinds: Sequence[ContainerKind], shares: PodShares) -> Footprints:
    """The most the pod may still hold of each GPU: less than at first once its init containers can never run again."""
    if _inits_are_over(pod):
        shares = tuple(() if kind is ContainerKind.INIT else each for kind, each in zip(kinds, shares, strict=True))
    return effective(kinds, shares)


def effective(kinds: Sequence[ContainerKind], shares: PodShares) -> Footprints:
    """The most a pod ever holds of each GPU at once, each dimension by itself.

    Containers start in order: an init container runs beside the sidecars started before it, the app containers run
    beside all sidecars (KEP-753 of kubernetes/enhancements). `kinds` and `shares` have one entry per container.
    """
    running: dict[DeviceUUID, Footprint] = {}
    peak: dict[DeviceUUID, Footprint] = {}
    for kind, container in zip(kinds, shares, strict=True):
        beside = dict(running) if kind is ContainerKind.INIT else running
        for share in container:
            uuid, held = share.uuid, Footprint(1, share.memory_mib, share.cores)
            beside[uuid] = held = beside[uuid] + held if uuid in beside else held
            peak[uuid] = peak[uuid] | held if uuid in peak else held
    return peak


def least(kinds: Sequence[ContainerKind], needs: Sequence[ContainerNeed | None]) -> Footprint:
    """What a pod holds of all its GPUs together at its peak, at the least: a percentage of memory counts 0.

    A percentage is known once there is a GPU. `kinds` and `needs` have one entry per container.
    """
    running = peak = NOTHING
    for kind, need in zip(kinds, needs, strict=True):
        if need is None:
            continue
        count = need.count
        beside = running + Footprint(count, count * need.memory_mib, count * need.reserved_cores)
        peak |= beside
        if kind is not ContainerKind.INIT:
            running = beside
    return peak


def _inits_are_over(pod: Pod) -> bool:
    """Whether no ordinary init container can run again.

    Having ended is not enough: kubelet runs init containers anew when it makes a pod's sandbox anew, say after a
    reboot, and a GPU that was given away meanwhile would be booked twice. Only a pod that restarts nothing is never
    given a second sandbox (kubelet's computePodActions in kubernetes/kubernetes).
    """
    if pod.spec.restart_policy != "Never" or pod.status.phase != "Running":
        return False
    ordinary = [each for each in pod.spec.init_containers if each.restart_policy != "Always"]
    if any(map(_restarts, (*ordinary, *pod.spec.containers))):
        return False
    ended = {status.name for status in pod.status.init_container_statuses if _ended_well(status)}
    return all(container.name in ended for container in ordinary)


def _restarts(container: Container) -> bool:
    """Whether it has a restart policy of its own beside its pod's."""
    return bool(container.restart_policy_rules) or container.restart_policy not in ("", "Never")


def _ended_well(status: ContainerStatus) -> bool:
    return status.state.terminated is not None and status.state.terminated.exit_code == 0


def total(footprints: Iterable[Footprint]) -> Footprint:
    slots = memory_mib = cores = 0
    for footprint in footprints:
        slots += footprint.slots
        memory_mib += footprint.memory_mib
        cores += footprint.cores
    return Footprint(slots, memory_mib, cores)
