"""The parts of nodes and of domains of nodes that no pod holds: idle, unused, or stranded where no pod can get them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from program.words import counted
from proto.annotations.keys import NODE_HOSTNAME
from proto.annotations.unhealthy_since import stamp
from scheduler_ext.cluster.registered import RegisteredNode
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage
from scheduler_ext.decide.reasons import out_of_service
from scheduler_ext.domains.levels import word


class Unused(NamedTuple):
    """The part that no pod holds, and beside it what pods hold, of one node or of several.

    It is `idle` on GPUs without pods and `unused` on GPUs that more pods can share. It is `stranded` where no pod can
    get it: no replica or core is left beside it, or the GPU is out of service.
    """

    gpus: int = 0
    memory_mib: int = 0
    """The sum of all GPUs, held or not."""
    cores: int = 0
    idle_gpus: int = 0
    idle_memory_mib: int = 0
    unused_memory_mib: int = 0
    unused_cores: int = 0
    stranded_gpus: int = 0
    stranded_memory_mib: int = 0
    not_serving_gpus: int = 0
    """Unhealthy, or cordoned alone or with their node."""
    held_memory_mib: int = 0
    held_cores: int = 0


def serves(node: RegisteredNode, gpu: GpuUsage) -> bool:
    """Returns whether pods may get the GPU: it is healthy, and neither it nor its node is cordoned."""
    return not out_of_service(node, gpu.device)


def is_idle(node: RegisteredNode, gpu: GpuUsage) -> bool:
    """Returns whether a pod may get the whole GPU."""
    return not gpu.replicas and serves(node, gpu)


def idle_gpus(usage: NodeUsage) -> int:
    return sum(is_idle(usage.node, gpu) for gpu in usage.gpus)


def is_open(node: RegisteredNode, gpu: GpuUsage) -> bool:
    """Returns whether one more container may get a part of the GPU."""
    return serves(node, gpu) and free_replicas(gpu) > 0 and free_cores(gpu) > 0 and free_memory_mib(gpu) > 0


def free_memory_mib(gpu: GpuUsage) -> int:
    return max(gpu.device.memory_mib - gpu.memory_mib, 0)


def free_cores(gpu: GpuUsage) -> int:
    return max(gpu.device.cores - gpu.cores, 0)


def free_replicas(gpu: GpuUsage) -> int:
    return max(gpu.device.replicas - gpu.replicas, 0)


def set_aside_words(usage: NodeUsage) -> str:
    """Returns for which pod the node is set aside, how long, and what that leaves idle; empty for any other node."""
    aside = usage.set_aside
    if aside is None:
        return ""
    since, until = (stamp(datetime.fromtimestamp(at, UTC)) for at in (aside.aside.since, aside.aside.until))
    idle = f"{idle_gpus(usage)} of {len(usage.gpus)} GPUs are idle"
    return f"set aside for {aside.owner} since {since}, until {until} at the latest: {idle}"


def unused(usage: NodeUsage) -> Unused:
    """Adds up what is free on each GPU of the node."""
    node = usage.node
    idle = [gpu for gpu in usage.gpus if is_idle(node, gpu)]
    shared = [gpu for gpu in usage.gpus if gpu.replicas and is_open(node, gpu)]
    closed = [gpu for gpu in usage.gpus if not is_open(node, gpu) and not is_idle(node, gpu)]
    return Unused(
        gpus=len(usage.gpus),
        memory_mib=sum(gpu.device.memory_mib for gpu in usage.gpus),
        cores=sum(gpu.device.cores for gpu in usage.gpus),
        idle_gpus=len(idle),
        idle_memory_mib=_memory(idle),
        unused_memory_mib=_memory(shared),
        unused_cores=sum(map(free_cores, shared)),
        stranded_gpus=sum(free_memory_mib(gpu) > 0 for gpu in closed),
        stranded_memory_mib=_memory(closed),
        not_serving_gpus=sum(not serves(node, gpu) for gpu in usage.gpus),
        held_memory_mib=sum(gpu.memory_mib for gpu in usage.gpus),
        held_cores=sum(gpu.cores for gpu in usage.gpus),
    )


def _memory(gpus: Iterable[GpuUsage]) -> int:
    return sum(map(free_memory_mib, gpus))


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainRoom:
    """A domain with nodes that offer GPUs. `level` is its word for people; of `whole` nodes all GPUs are free."""

    level: str
    name: str
    nodes: int
    whole: int
    gpus: int
    free_gpus: int

    def __str__(self) -> str:
        return f"{self.level} {self.name}: {self.whole} of {counted(self.nodes, 'node')} free as a whole"


def domain_rooms(usages: Iterable[NodeUsage], levels: Sequence[str]) -> tuple[DomainRoom, ...]:
    """Returns the domains of each level from wide to narrow, apart from single nodes."""
    by_domain: dict[tuple[int, str], list[NodeUsage]] = {}
    numbers = {level: number for number, level in enumerate(levels) if level != NODE_HOSTNAME}
    for usage in usages:
        for level, name in usage.node.domains.items():
            if level in numbers:
                by_domain.setdefault((numbers[level], name), []).append(usage)
    return tuple(_room(word(levels[number]), name, by_domain[number, name]) for number, name in sorted(by_domain))


def _room(level: str, name: str, usages: Sequence[NodeUsage]) -> DomainRoom:
    return DomainRoom(
        level=level,
        name=name,
        nodes=len(usages),
        whole=sum(idle_gpus(usage) == len(usage.gpus) for usage in usages),
        gpus=sum(len(usage.gpus) for usage in usages),
        free_gpus=sum(map(idle_gpus, usages)),
    )


def named_domains(node: RegisteredNode) -> tuple[tuple[str, str], ...]:
    """Returns the domains that the node shares with others, from wide to narrow, each with the word for its level."""
    return tuple((word(level), name) for level, name in node.domains.items() if level != NODE_HOSTNAME)
