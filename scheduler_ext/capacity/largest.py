"""The largest request that still fits, and the nearest smaller request that would."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain

from program.words import counted, spaced
from proto.devices import MIG_MODE
from scheduler_ext.capacity.rooms import likeness
from scheduler_ext.capacity.unused import free_cores, free_memory_mib, idle_gpus, is_open
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage, Quota, Snapshot, quota_for
from scheduler_ext.decide.misfit import Misfit
from scheduler_ext.decide.place import place
from scheduler_ext.policies import NodePolicy, Policies, parse_gpu_policy
from scheduler_ext.quota_class import QuotaClass
from scheduler_ext.requests import ContainerKind, ContainerNeed, GpuRequest

COUNTS = (1, 2, 4, 8, 16)
"""Numbers of GPUs that people request."""
MOST_PLACED = 2_000
"""Attempts to place a request in one search. Beyond them the search returns what it has found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    """The answer for pods with `gpus` GPUs on one node, which tolerate no taint of their own, and for which no node is
    set aside.
    """

    gpus: int
    whole_pods: int
    """The number of them that fit with whole GPUs."""
    whole_pods_if_empty: int
    """The number that would fit if no pod held a GPU, and all GPUs and nodes served them."""
    share_mib: int
    """The most memory of each GPU with which one of them fits; 0 if none does."""


class Amount(StrEnum):
    """The amounts that a smaller request lowers, for each of its containers."""

    MEMORY = "memory"
    """MiB of each GPU."""
    CORES = "cores"
    """Percent of each GPU."""
    GPUS = "GPUs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Smaller:
    """A request that fits now: the same, but no container requests more than `at_most` of this amount."""

    amount: Amount
    at_most: int
    asked: int
    """The most that a container requested: a key of the plugin's JSON."""

    @property
    def words(self) -> str:
        """Returns `at most 8 000 MiB of each GPU instead of 20 000 MiB`."""
        match self.amount:
            case Amount.MEMORY:
                return f"at most {spaced(self.at_most)} MiB of each GPU instead of {spaced(self.asked)} MiB"
            case Amount.CORES:
                return f"at most {self.at_most} % of each GPU's cores instead of {self.asked} %"
        return f"at most {counted(self.at_most, 'GPU')} for a container instead of {self.asked}"


def largest(snapshot: Snapshot, counts: Iterable[int] = COUNTS) -> tuple[Largest, ...]:
    """Returns one value for each number of GPUs that some node has."""
    usages = list(snapshot.nodes.values())
    most = max((len(usage.gpus) for usage in usages), default=0)
    open_to_all = [usage for usage in usages if not usage.node.barred_by and usage.set_aside is None]
    idle = [*map(idle_gpus, open_to_all)]
    kinds = _kinds(open_to_all)
    return tuple(
        Largest(
            gpus=count,
            whole_pods=sum(free // count for free in idle),
            whole_pods_if_empty=sum(len(usage.gpus) // count for usage in usages),
            share_mib=_most(Amount.MEMORY, _asking_for(count), kinds, None),
        )
        for count in counts
        if count <= most
    )


def smaller(request: GpuRequest, snapshot: Snapshot) -> Smaller | None:
    """Returns a smaller request that fits now: the one that keeps the largest part of what was requested. None if none
    fits.
    """
    quota = quota_for(request.quota_class, snapshot.quotas.get(request.namespace, ()))
    names_gpus = request.filter.uuids is not None or bool(request.filter.refused_uuids)
    usages = list(snapshot.nodes.values()) if names_gpus else _kinds(snapshot.nodes.values())
    needs = [need for need in request.needs if need is not None]
    requested = {
        Amount.MEMORY: max(
            (need.reserved_mib(gpu.device.memory_mib) for need in needs for usage in usages for gpu in usage.gpus),
            default=0,
        ),
        Amount.CORES: max(need.reserved_cores for need in needs),
        Amount.GPUS: max(need.count for need in needs),
    }
    lowered = [amount for amount in Amount if requested[amount] > (amount is Amount.GPUS)]
    found = [
        Smaller(amount=each, at_most=_most(each, request, usages, quota), asked=requested[each]) for each in lowered
    ]
    fitting = [each for each in found if 0 < each.at_most < each.asked]
    return max(fitting, key=lambda each: each.at_most / each.asked, default=None)


_BEYOND = 2**31 - 1
"""MiB. More than any GPU has."""


def _most(amount: Amount, request: GpuRequest, usages: Iterable[NodeUsage], quota: Quota | None) -> int:
    """Returns the most of this amount with which the request fits on a node, all else as requested; 0 if it fits with
    none. It tries what a node could give, the largest first, and only what is above the best one found.
    """
    offers = [(sorted(set(_offered(amount, request, usage, quota)), reverse=True), usage) for usage in usages]
    best, placed = 0, 0
    for tried, usage in sorted((each for each in offers if each[0]), key=lambda each: -each[0][0]):
        for most in tried:
            if most <= best or placed >= MOST_PLACED:
                break
            placed += 1
            needs = tuple(None if need is None else _lowered(need, amount, most) for need in request.needs)
            if not isinstance(place(replace(request, needs=needs), usage, quota), Misfit):
                best = most
    return best


def _offered(amount: Amount, request: GpuRequest, usage: NodeUsage, quota: Quota | None) -> Iterator[int]:
    """Yields how much of the amount the node's GPUs have, and what the quota leaves for each GPU."""
    counts = [need.count for need in request.needs if need is not None]
    gpus = [gpu for gpu in usage.gpus if is_open(usage.node, gpu)]
    found: Iterable[int]
    match amount:
        case Amount.MEMORY:
            limit, used = (None, 0) if quota is None else (quota.memory_mib, quota.used.memory_mib)
            found = chain.from_iterable(map(_memories, gpus))
        case Amount.CORES:
            limit, used = (None, 0) if quota is None else (quota.cores, quota.used.cores)
            found = (min(free_cores(gpu), 100) for gpu in gpus)
        case Amount.GPUS:
            limit, used, found = None, 0, range(1, min(len(usage.gpus), max(counts)) + 1)
    left = () if limit is None else ((limit - used) // sum(counts),)
    yield from (each for each in chain(left, found) if each > 0)


def _lowered(need: ContainerNeed, amount: Amount, most: int) -> ContainerNeed:
    match amount:
        case Amount.MEMORY:
            return replace(need, memory_mib=min(need.reserved_mib(_BEYOND), most), memory_percentage=None)
        case Amount.CORES:
            return replace(need, cores=min(need.cores, most))
        case Amount.GPUS:
            return replace(need, count=min(need.count, most))


def _kinds(usages: Iterable[NodeUsage]) -> Sequence[NodeUsage]:
    """Returns one of each kind of nodes."""
    return list({likeness(usage): usage for usage in usages}.values())


def _memories(gpu: GpuUsage) -> Iterable[int]:
    yield free_memory_mib(gpu)
    if gpu.device.mode == MIG_MODE:
        yield from (profile.memory_mib for profile in gpu.device.mig_profiles)


def _asking_for(count: int) -> GpuRequest:
    """Returns a pod with one container that requests all memory of so many GPUs, without a limit on cores."""
    return GpuRequest(
        pod="",
        namespace="",
        uid="",
        quota_class=QuotaClass(),
        needs=(ContainerNeed(count=count, memory_mib=0, memory_percentage=100, cores=0),),
        kinds=(ContainerKind.APP,),
        policies=Policies(node=NodePolicy.BINPACK, gpu=parse_gpu_policy("binpack")),
    )
