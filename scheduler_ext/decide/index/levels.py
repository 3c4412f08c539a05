"""Levels of `fgd`: how good it is for the cluster to place pods of one shape on a node, and a bound without placing.

Most nodes need no closer look: even their best case is worse than what another node offers. Nodes in one state share
the result.
"""

from collections.abc import Callable
from typing import NamedTuple, cast

from proto.devices import MIG_MODE, PodShares
from scheduler_ext.decide.effort import Effort, make_room
from scheduler_ext.decide.fgd import Fragmentation, RatedGpu, Rates, Site, level_of
from scheduler_ext.decide.index.verdicts import PodShape
from scheduler_ext.decide.place import place
from scheduler_ext.requests import ContainerKind, ContainerNeed, GpuRequest

MOST_KNOWN = 20_000
MOST_GPUS_KNOWN = 4_000
"""Entries remembered."""
EFFORT_OF_A_BOUND = 2
EFFORT_OF_A_LEVEL = 20
"""Effort for one node in a new state, in addition to choosing its GPUs."""
_ROUNDING = 1e-9
"""More than sums of the same numbers differ by their order."""


class Levels:
    """Levels of one shape in one workload. `sites` are by node."""

    def __init__(self, shape: PodShape, fragmentation: Fragmentation, sites: Callable[[str], Site]) -> None:
        self._shape = shape
        self._named = shape.named
        self._fragmentation = fragmentation
        self._sites = sites
        self._best_case = BestCase(shape.request, fragmentation)
        self._known: dict[tuple[int, float, float], int] = {}

    def most(self, name: str, effort: Effort) -> int:
        """Returns an upper bound of `level`."""
        before = self._fragmentation.effort.made
        level = self._best_case.level(self._sites(name))
        effort.made += EFFORT_OF_A_BOUND + self._fragmentation.effort.made - before
        return level

    def level(self, name: str, state: int, effort: Effort) -> int:
        """Returns the level of a node on which the pod fits, from 0 to 100. `state` is the state's number."""
        site = self._sites(name)
        if self._named and any(gpu.device.uuid in self._named for gpu in site.usage.gpus):
            return self._placed(site, effort)
        key = state, site.cpu, site.memory
        level = self._known.get(key)
        if level is None:
            make_room(self._known, MOST_KNOWN)
            level = self._known[key] = self._placed(site, effort)
        return level

    def _placed(self, site: Site, effort: Effort) -> int:
        before = self._fragmentation.effort.made
        shares = cast("PodShares", place(self._shape.request, site.usage, self._shape.quota, effort))
        level = self._fragmentation.level(self._shape.request, site, shares)
        effort.made += EFFORT_OF_A_LEVEL + self._fragmentation.effort.made - before
        return level


class _Taken(NamedTuple):
    """The least and the most that the largest container takes of a GPU, as fractions of it, and how often it may take
    that of one in MIG mode.
    """

    least: float
    most: float
    again: int


class _Gain(NamedTuple):
    """The gain, and the GPUs that are taken, at most."""

    won: float
    taken: float


class BestCase:
    """Bounds for pods of one request.

    What is won on a node is a sum over its GPUs: the part that is taken, times a rate. The rate is 1, minus the
    popularity of the classes that could use the part, minus its worth. What stays free may then serve fewer classes
    than before. That only lowers the sum, and it is left out. The classes that the node's CPU and memory still host are
    known exactly.
    """

    def __init__(self, request: GpuRequest, fragmentation: Fragmentation) -> None:
        self._host = request.host
        self._fragmentation = fragmentation
        self._filter = request.filter
        needs = [(need, kind) for need, kind in zip(request.needs, request.kinds, strict=True) if need is not None]
        self._alone = len(needs) == 1
        # An init container may be moved to the GPUs of other containers.
        lasting = [need for need, kind in needs if kind is not ContainerKind.INIT] or [need for need, _ in needs]
        self._need = max(lasting, key=lambda need: need.count, default=None)
        # A share of no memory at all may fit on a full GPU.
        self._takes_memory = self._need is not None and self._need.memory_mib > 0
        self._known: dict[int, _Taken | None] = {}

    def level(self, site: Site) -> int:
        """Returns the highest level that a placement on this node may have; 0 if no GPU has room."""
        if self._takes_memory and not site.node.free:
            return 0
        looked = self._fragmentation
        cpu, memory = site.cpu - self._host.cpu_milli, site.memory - self._host.memory_mib
        rates = looked.rates(site, looked.hosted(cpu, memory))
        free = site.node.free
        gain = self._on_gpus(rates, free)
        if gain is None:
            return 0
        lost = looked.without_host(free - gain.taken, cpu, memory)
        won = gain.won + (rates.useful - site.rates.useful + site.lost - lost)
        return level_of(won + _ROUNDING)

    def _on_gpus(self, rates: Rates, free: float) -> _Gain | None:
        """Returns None if too few GPUs have room."""
        need, known = self._need, self._known
        if need is None:
            return _Gain(0.0, 0.0)
        found: list[tuple[float, int]] = []
        most = highest = 0.0
        for gpu, rate, equal in rates.kinds:
            number = gpu.number
            taken = known[number] if number in known else self._taken(gpu, need)
            highest = max(highest, rate)
            if taken is not None:
                least, at_most, again = taken
                found.append((rate * at_most if rate > 0 else rate * least, again or equal))
                most = max(most, at_most)
        won = _best(found, need.count)
        if won is None:
            return None
        if self._alone:
            return _Gain(won, most * need.count)
        return _Gain(free * highest if highest > 0 else won, free)

    def _taken(self, gpu: RatedGpu, need: ContainerNeed) -> _Taken | None:
        """Returns None if the container finds no room there."""
        make_room(self._known, MOST_GPUS_KNOWN)
        taken = self._known[gpu.number] = self._looked_at(gpu, need)
        return taken

    def _looked_at(self, gpu: RatedGpu, need: ContainerNeed) -> _Taken | None:
        device = gpu.device
        memory_mib, is_mig = need.reserved_mib(device.memory_mib), device.mode == MIG_MODE
        again = need.count if is_mig else 0
        # An instance has cores of its own.
        cores = 0 if is_mig else need.reserved_cores
        has_room = gpu.replicas and gpu.memory_mib >= memory_mib and gpu.cores >= cores
        if not has_room or not self._filter.allows_type(device.type):
            return None
        if gpu.replicas == 1:
            return _Taken(gpu.left, gpu.left, again)
        memory = (gpu.memory_mib - memory_mib) / device.memory_mib if device.memory_mib else 0.0
        rest = min(memory, (gpu.cores - cores) / device.cores) if device.cores else memory
        least = gpu.left - max(rest, 0.0)
        return _Taken(least, least if self._alone and not is_mig else gpu.left, again)


def _best(found: list[tuple[float, int]], count: int) -> float | None:
    """Returns the most that `count` GPUs win together, None if there are fewer. `found` is what one wins, and their
    number.
    """
    if count == 1:
        return max(found)[0] if found else None
    total = 0.0
    for won, number in sorted(found, reverse=True):
        total += won * min(number, count)
        count -= number
        if count <= 0:
            return total
    return None
