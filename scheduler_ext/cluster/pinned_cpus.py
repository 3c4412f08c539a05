"""Computes where the CPUs are that kubelet gives to containers alone: beside their GPUs."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from proto.devices import DeviceUUID, PodShares
from scheduler_ext.requests import ContainerKind


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
