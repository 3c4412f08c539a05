"""`topogpu.io/limits`: what holds the containers of a node to their parts of GPUs, and what each backend holds."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from types import MappingProxyType


class Backend(StrEnum):
    """The means that hold a container to a part of a GPU, the preferred one first."""

    DRIVER = "driver"
    """NVIDIA's driver, by the container's control group."""
    HAMI_CORE = "hami-core"
    """HAMi-core, inside the container's processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds:
    """The parts that a backend holds. `several`: also parts of several GPUs in one container. `in_process`: a variable
    of the container can lift its limits.
    """

    memory: bool
    cores: bool
    several: bool
    in_process: bool


HOLDS: Mapping[Backend, Holds] = MappingProxyType(
    {
        Backend.DRIVER: Holds(memory=True, cores=False, several=True, in_process=False),
        Backend.HAMI_CORE: Holds(memory=True, cores=True, several=False, in_process=True),
    }
)


class NodeLimits(StrEnum):
    """The backends of a node, and whether its settings allow parts to which nothing holds a container for sure."""

    NONE = "none"
    """Nothing holds parts: only whole GPUs are given out."""
    UNENFORCED = "unenforced"
    """Nothing holds parts, and they are given out."""
    HAMI_CORE = "hami-core"
    PARTLY_ENFORCED = "partly-enforced"
    """HAMi-core, and parts of several GPUs are given out."""
    DRIVER = "driver"
    DRIVER_UNENFORCED = "driver+unenforced"
    """The driver, and parts of cores are given out."""
    DRIVER_AND_HAMI_CORE = "driver+hami-core"
    DRIVER_PARTLY_ENFORCED = "driver+partly-enforced"
    """Both, and parts of the cores of several GPUs are given out."""

    @property
    def backends(self) -> tuple[Backend, ...]:
        """Returns what holds parts here, the preferred one first."""
        return _BACKENDS[self]

    @property
    def allows_unheld(self) -> bool:
        return self in _ALLOWING


_UNHELD_WORDS = frozenset({"unenforced", "partly-enforced"})
_BACKEND_OF = {"driver": Backend.DRIVER, "hami-core": Backend.HAMI_CORE, "partly-enforced": Backend.HAMI_CORE}
_BACKENDS = {
    limits: tuple(_BACKEND_OF[word] for word in limits.split("+") if word in _BACKEND_OF) for limits in NodeLimits
}
_ALLOWING = frozenset(limits for limits in NodeLimits if not _UNHELD_WORDS.isdisjoint(limits.split("+")))


def limits_with(backends: Iterable[Backend], *, allows_unheld: bool) -> NodeLimits:
    """Returns the word for a node with these backends."""
    there = set(backends)
    return next(each for each in NodeLimits if set(each.backends) == there and each.allows_unheld is allows_unheld)


@dataclass(frozen=True, slots=True)
class Unheld:
    """The parts that a node does not give to a container, because nothing would hold it to them."""

    memory: bool
    cores: bool


@cache
def unheld(limits: NodeLimits, *, several: bool, lifted: bool) -> Unheld:
    """Returns the parts that a node refuses a container. `several`: it gets more than one GPU. `lifted`: a variable of
    it lifts the limits that a library has in its processes. Then what the node allows is no way out either.
    """

    def is_refused(holders: list[Holds]) -> bool:
        if any((each.several or not several) and not (each.in_process and lifted) for each in holders):
            return False
        return not limits.allows_unheld or (lifted and any(each.in_process for each in holders))

    here = [HOLDS[backend] for backend in limits.backends]
    return Unheld(
        memory=is_refused([each for each in here if each.memory]),
        cores=is_refused([each for each in here if each.cores]),
    )


def decode_limits(value: str | None) -> NodeLimits:
    """Reads the annotation. HAMi's plugin, which comes with HAMi-core and gives out parts of several GPUs, does not
    write it. An unknown word promises nothing.
    """
    if value is None:
        return NodeLimits.PARTLY_ENFORCED
    return NodeLimits(value) if value in set(NodeLimits) else NodeLimits.NONE
