"""What a pod holds of each GPU over its whole life."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from proto.devices import ContainerShares, DeviceUUID, PodShares
from scheduler_ext.requests import ContainerKind


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


def effective(kinds: Sequence[ContainerKind], shares: PodShares) -> Footprints:
    """The most a pod ever holds of each GPU at once, each dimension by itself.

    Containers start in order: an init container runs beside the sidecars started before it, the app containers run
    beside all sidecars. `kinds` and `shares` have one entry per container.
    """
    running: dict[DeviceUUID, Footprint] = {}
    peak: dict[DeviceUUID, Footprint] = {}
    for kind, container in zip(kinds, shares, strict=True):
        if kind is not ContainerKind.INIT:
            _add(running, container)
            continue
        for uuid, footprint in _init_footprints(container):
            peak[uuid] = peak.get(uuid, NOTHING) | (running.get(uuid, NOTHING) + footprint)
    for uuid, footprint in running.items():
        peak[uuid] = peak.get(uuid, NOTHING) | footprint
    return peak


def total(footprints: Iterable[Footprint]) -> Footprint:
    slots = memory_mib = cores = 0
    for footprint in footprints:
        slots += footprint.slots
        memory_mib += footprint.memory_mib
        cores += footprint.cores
    return Footprint(slots, memory_mib, cores)


def _add(running: dict[DeviceUUID, Footprint], container: ContainerShares) -> None:
    for share in container:
        held = Footprint(1, share.memory_mib, share.cores)
        running[share.uuid] = running.get(share.uuid, NOTHING) + held


def _init_footprints(container: ContainerShares) -> Iterable[tuple[DeviceUUID, Footprint]]:
    """An init container takes one slot of a GPU, however often it names it."""
    held: dict[DeviceUUID, Footprint] = {}
    _add(held, container)
    return [(uuid, Footprint(1, footprint.memory_mib, footprint.cores)) for uuid, footprint in held.items()]
