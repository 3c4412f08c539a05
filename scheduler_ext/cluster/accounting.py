"""Computes what a pod holds at its peak: of each GPU, and of the CPUs that kubelet gives to containers alone."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TypeVar

from msgspec import Struct

from proto.devices import DeviceUUID, PodShares
from scheduler_ext.requests import ContainerKind, ContainerNeed


class Footprint(Struct, frozen=True, gc=False):
    """An amount of one GPU."""

    replicas: int = 0
    memory_mib: int = 0
    cores: int = 0

    def __add__(self, other: "Footprint") -> "Footprint":
        return Footprint(self.replicas + other.replicas, self.memory_mib + other.memory_mib, self.cores + other.cores)

    def __sub__(self, other: "Footprint") -> "Footprint":
        return Footprint(self.replicas - other.replicas, self.memory_mib - other.memory_mib, self.cores - other.cores)

    def __or__(self, other: "Footprint") -> "Footprint":
        """Returns the larger value of each dimension."""
        return Footprint(
            max(self.replicas, other.replicas), max(self.memory_mib, other.memory_mib), max(self.cores, other.cores)
        )


NOTHING = Footprint()
Footprints = Mapping[DeviceUUID, Footprint]
K = TypeVar("K")


class FootprintSums(dict[str, dict[K, Footprint]]):
    """Sums by name and key. Nothing stays of a name without a sum: most never come back."""

    def change(self, name: str, key: K, more: Footprint) -> None:
        sums = self.setdefault(name, {})
        sums[key] = sums.get(key, NOTHING) + more
        if sums[key] == NOTHING:
            del sums[key]
        if not sums:
            del self[name]


def effective(kinds: Sequence[ContainerKind], shares: PodShares) -> Footprints:
    """Returns the most that a pod ever holds of each GPU at once, for each dimension. It holds that until it ends.

    An ended init container's share is not given away. Kubelet may run the container again in a new sandbox, for example
    after a reboot. Kubelet also admits other pods by the requests of all pods of the node, ended init containers
    included.

    Containers start in order. An init container runs beside the sidecars started before it, the app containers beside
    all sidecars (KEP-753 of kubernetes/enhancements). `kinds` and `shares` have one entry per container.
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
    """Returns the least that a pod holds of all its GPUs together at its peak. A percentage of memory counts 0: its
    amount is known only once there is a GPU.

    `kinds` and `needs` have one entry per container.
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


class PinnedContainer(NamedTuple):
    """A container with CPUs of its own. `lasts` is false for an init container that ends before the next one starts."""

    cpus: int
    gpus: tuple[DeviceUUID, ...]
    lasts: bool


NO_PINNED: tuple[PinnedContainer, ...] = ()


def pinned_containers(
    cpus: Sequence[int], kinds: Sequence[ContainerKind], shares: PodShares
) -> tuple[PinnedContainer, ...]:
    """Returns the containers in their order. `cpus` has the CPUs of each; it is empty if none has any."""
    if not cpus:
        return NO_PINNED
    every = zip(cpus, kinds, shares, strict=False)
    return tuple(
        PinnedContainer(amount, tuple(share.uuid for share in held), kind is not ContainerKind.INIT)
        for amount, kind, held in every
        if amount
    )


def taken_cpus(
    containers: Sequence[PinnedContainer], numa: Mapping[DeviceUUID, int], zones: Collection[int], *, is_whole: bool
) -> Mapping[int, int]:
    """Returns the most CPUs of each NUMA node that the containers of a pod may have at one time. Those of a container
    may be on each NUMA node of its GPUs, and anywhere if its GPUs are on none. Those of one without GPUs count where
    the pod is aligned as a whole.
    """
    near = [_near(each, numa, zones) for each in containers]
    if is_whole:
        near = [set[int]().union(*near)] * len(near)
    found: dict[int, int] = {}
    for zone in zones:
        running = most = 0
        for each, own in zip(containers, near, strict=True):
            if zone in own:
                most = max(most, running + each.cpus)
                running += each.cpus if each.lasts else 0
        found[zone] = most
    return found


def _near(container: PinnedContainer, numa: Mapping[DeviceUUID, int], zones: Collection[int]) -> set[int]:
    return {numa[uuid] for uuid in container.gpus if numa.get(uuid) in zones} or {*(zones if container.gpus else ())}
