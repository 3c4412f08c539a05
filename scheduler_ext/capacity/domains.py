"""The free part of each domain of nodes, such as a rack or a clique."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from program.words import counted
from proto.annotations.keys import NODE_HOSTNAME
from scheduler_ext.cluster.registered import RegisteredNode
from scheduler_ext.cluster.snapshot import NodeUsage
from scheduler_ext.domains.levels import word


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
        whole=sum(usage.is_whole for usage in usages),
        gpus=sum(len(usage.gpus) for usage in usages),
        free_gpus=sum(usage.is_free(gpu) for usage in usages for gpu in usage.gpus),
    )


def named_domains(node: RegisteredNode) -> tuple[tuple[str, str], ...]:
    """Returns the domains that the node shares with others, from wide to narrow, each with the word for its level."""
    return tuple((word(level), name) for level, name in node.domains.items() if level != NODE_HOSTNAME)
