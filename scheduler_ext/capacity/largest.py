"""The largest request that still fits, and the nearest smaller request that would."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain

from program.words import counted, spaced
from proto.devices import MIG_MODE
from scheduler_ext.capacity.rooms import likeness
from scheduler_ext.capacity.unused import free_cores, free_memory_mib, is_idle, is_open
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
    """The answer for pods with `gpus` GPUs on one node."""

    gpus: int
    whole_pods: int
    """The number of them that fit with whole GPUs."""
    whole_pods_if_empty: int
    """The number that would fit if no pod held a GPU and all GPUs served."""
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
    """The most that a container requested."""

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
    idle = [sum(is_idle(usage.node, gpu) for gpu in usage.gpus) for usage in usages]
    kinds = _kinds(usages)
    return tuple(
        Largest(
            gpus=count,
            whole_pods=sum(free // count for free in idle),
            whole_pods_if_empty=sum(len(usage.gpus) // count for usage in usages),
            share_mib=_most_memory(_asking_for(count), kinds, None),
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
    asked = {
        Amount.MEMORY: max(
            (need.reserved_mib(gpu.device.memory_mib) for need in needs for usage in usages for gpu in usage.gpus),
            default=0,
        ),
        Amount.CORES: max(need.reserved_cores for need in needs),
        Amount.GPUS: max(need.count for need in needs),
    }
    searches = {Amount.MEMORY: _most_memory, Amount.CORES: _most_cores, Amount.GPUS: _most_gpus}
    found = {
        amount: search(request, usages, quota)
        for amount, search in searches.items()
        if asked[amount] > (amount is Amount.GPUS)
    }
    fitting = [
        Smaller(amount=amount, at_most=most, asked=asked[amount])
        for amount, most in found.items()
        if 0 < most < asked[amount]
    ]
    return max(fitting, key=lambda each: each.at_most / each.asked, default=None)


_BEYOND = 2**31 - 1
"""MiB. More than any GPU has."""
Change = Callable[[GpuRequest, int], GpuRequest]


def _most_memory(request: GpuRequest, usages: Iterable[NodeUsage], quota: Quota | None) -> int:
    """The most MiB of each GPU with which the request fits on a node, all else as requested; 0 if it fits with none."""
    gpus = _gpus(request)
    left = [] if quota is None or quota.memory_mib is None else [(quota.memory_mib - quota.used.memory_mib) // gpus]

    def amounts(usage: NodeUsage) -> Iterable[int]:
        return chain(left, *(_memories(gpu) for gpu in usage.gpus if is_open(usage.node, gpu)))

    def change(request: GpuRequest, mib: int) -> GpuRequest:
        return _changed(
            request, lambda need: replace(need, memory_mib=min(need.reserved_mib(_BEYOND), mib), memory_percent=None)
        )

    return _most(request, usages, quota, amounts, change)


def _most_cores(request: GpuRequest, usages: Iterable[NodeUsage], quota: Quota | None) -> int:
    """Returns the same as `_most_memory`, in percent."""
    left = [] if quota is None or quota.cores is None else [(quota.cores - quota.used.cores) // _gpus(request)]

    def amounts(usage: NodeUsage) -> Iterable[int]:
        return chain(left, (min(free_cores(gpu), 100) for gpu in usage.gpus if is_open(usage.node, gpu)))

    def change(request: GpuRequest, cores: int) -> GpuRequest:
        return _changed(request, lambda need: replace(need, cores=min(need.cores, cores)))

    return _most(request, usages, quota, amounts, change)


def _most_gpus(request: GpuRequest, usages: Iterable[NodeUsage], quota: Quota | None) -> int:
    """Returns the same as `_most_memory`, for GPUs of each container."""

    def change(request: GpuRequest, gpus: int) -> GpuRequest:
        return _changed(request, lambda need: replace(need, count=min(need.count, gpus)))

    asked = max(need.count for need in request.needs if need is not None)
    return _most(request, usages, quota, lambda usage: range(1, min(len(usage.gpus), asked) + 1), change)


def _gpus(request: GpuRequest) -> int:
    return sum(need.count for need in request.needs if need is not None)


def _changed(request: GpuRequest, change: Callable[[ContainerNeed], ContainerNeed]) -> GpuRequest:
    return replace(request, needs=tuple(None if need is None else change(need) for need in request.needs))


def _most(
    request: GpuRequest,
    usages: Iterable[NodeUsage],
    quota: Quota | None,
    amounts: Callable[[NodeUsage], Iterable[int]],
    change: Change,
) -> int:
    """Tries the amounts that a node could give, the largest first, and only those above the best one found."""
    offers = [(sorted({each for each in amounts(usage) if each > 0}, reverse=True), usage) for usage in usages]
    best, placed = 0, 0
    for tried, usage in sorted((each for each in offers if each[0]), key=lambda each: -each[0][0]):
        for amount in tried:
            if amount <= best or placed >= MOST_PLACED:
                break
            placed += 1
            if not isinstance(place(change(request, amount), usage, quota), Misfit):
                best = amount
    return best


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
        needs=(ContainerNeed(count=count, memory_mib=0, memory_percent=100, cores=0),),
        kinds=(ContainerKind.APP,),
        policies=Policies(node=NodePolicy.BINPACK, gpu=parse_gpu_policy("binpack")),
    )
