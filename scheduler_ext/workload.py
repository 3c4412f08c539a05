"""Learns which kinds of pods request GPUs here, and how often.

Policy `fgd` rates every node by what it leaves for the pods that usually come.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from proto.devices import Device
from proto.kubernetes.objects import Pod
from proto.kubernetes.requests import NO_HOST, HostAmount, host_requested
from scheduler_ext.requests import (
    ContainerNeed,
    GpuRequest,
    RequestError,
    RequestSettings,
    pod_key,
    read_request,
    readable_request,
)
from scheduler_ext.usual_pods import ANNOTATIONS, HOST_RESOURCES

REMEMBERED = 10_000
"""Pods: one that came this many pods ago counts 1/e of one that comes now."""
MOST_CLASSES = 1_000
"""Classes kept; beyond them the rarest is forgotten."""
MOST_COUNTED = 64
"""Classes that a decision reads, the most popular first."""
COVERED = 0.95
"""Fraction of the pods; rarer classes are left out (as in FGD's evaluation)."""
RENEWED = 1_000
"""New pods after which the popularity for decisions is computed again; earlier while there are few."""
MOST_TYPES = 16
LONGEST_TYPES = 256
"""Characters of the types that a pod allows and refuses. A pod with more characters or types is not learned: each list
is kept, and searched for each type of GPU.
"""
_LARGEST_WEIGHT = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class PodClass:
    """The request of pods of one kind on a node. Several containers count as one that requests all their GPUs, and of
    each GPU the most that any of them requests.
    """

    host: HostAmount = NO_HOST
    need: ContainerNeed
    types: tuple[str, ...] | None = None
    """Words; a GPU's type must contain one of them. None allows every type."""
    refused_types: tuple[str, ...] = ()
    modes: str | None = None
    idle_only: bool = False
    linked: bool = False
    """True if its GPUs should be connected well."""

    def allows(self, model: str) -> bool:
        """Returns whether it allows a GPU of this type."""
        lower = model.lower()
        named = self.types is None or any(word in lower for word in self.types)
        return named and not any(word in lower for word in self.refused_types)

    def fraction(self, memory_mib: int) -> float:
        """Returns the part of a GPU with this much memory, at most 1."""
        memory = self.need.reserved_mib(memory_mib) / memory_mib if memory_mib else 1.0
        return min(max(memory, self.need.reserved_cores / 100), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Popular:
    """A class and its fraction of all pods that request GPUs."""

    pods: PodClass
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The pods that usually come. Without classes nothing is known of them, and all nodes rate the same.

    `per_gpu` is the CPU and memory that they request with each whole GPU, 0 where that does not count. `pressure` is
    the demand for a type of GPU per GPU that exists; the average is 1.
    """

    classes: tuple[Popular, ...] = ()
    per_gpu: HostAmount = NO_HOST
    pressure: Mapping[str, float] = field(default_factory=dict)


NO_WORKLOAD = Workload()


class HasDevices(Protocol):
    @property
    def devices(self) -> Sequence[Device]: ...


def class_of(request: GpuRequest) -> PodClass:
    """Returns the class of a request. GPUs named by UUID are not part of it: no other pod is like that pod."""
    needs = [need for need in request.needs if need is not None]
    several = max(need.count for need in needs) > 1
    need = needs[0] if len(needs) == 1 else _merged(needs)
    return PodClass(
        host=request.host,
        need=ContainerNeed(
            count=need.count, memory_mib=need.memory_mib, memory_percentage=need.memory_percentage, cores=need.cores
        ),
        types=request.filter.types,
        refused_types=request.filter.refused_types,
        modes=request.filter.modes,
        idle_only=request.policies.gpu.idle_only,
        linked=several and (request.policies.gpu.topology_aware or request.policies.gpu.packs),
    )


def _merged(needs: Sequence[ContainerNeed]) -> ContainerNeed:
    """Returns one need for all containers. If one has an amount of memory and another a percentage, the amount counts,
    as within one container.
    """
    return ContainerNeed(
        count=sum(need.count for need in needs),
        memory_mib=max(need.memory_mib for need in needs),
        memory_percentage=max((need.memory_percentage or 0 for need in needs), default=0) or None,
        cores=max(need.cores for need in needs),
    )


class Classes:
    """Counts each pod once. Recent pods count more."""

    def __init__(self, seeds: Iterable[tuple[PodClass, float]] = (), settings: RequestSettings | None = None) -> None:
        """Counts the `seeds` before all other pods, as that many pods of each class."""
        self._settings = settings or RequestSettings()
        self._weights: dict[PodClass, float] = {}
        for pods, number in seeds:
            self._weights[pods] = self._weights.get(pods, 0.0) + number
        self._next = 1.0
        self._seen: set[str] = set()
        self._arrived = 0
        self._due = 0
        """The number of arrivals at which the popularity is computed again; a large change of the number of nodes comes
        first.
        """
        self._sizes = range(0)
        self._workload = NO_WORKLOAD

    def apply(self, pod: Pod) -> None:
        """Counts a pod that runs. One that waits, or is made again and again and never starts, costs its author
        nothing.
        """
        if not pod.is_running or pod_key(pod) in self._seen:
            return
        request = readable_request(pod, self._settings)
        if request is not None:
            self.see(request.uid, replace(request, host=host_requested(pod)))

    def see(self, uid: str, request: GpuRequest) -> None:
        """Counts a pod that requests GPUs, unless it was counted."""
        if uid in self._seen:
            return
        self._seen.add(uid)
        types = *(request.filter.types or ()), *request.filter.refused_types
        if len(types) > MOST_TYPES or sum(map(len, types)) > LONGEST_TYPES:
            return
        self._arrived += 1
        self._next *= 1 + 1 / REMEMBERED
        pods = class_of(request)
        self._weights[pods] = self._weights.get(pods, 0.0) + self._next
        if len(self._weights) > MOST_CLASSES:
            del self._weights[min(self._weights, key=self._weights.__getitem__)]
        if self._next > _LARGEST_WEIGHT:
            self._weights = {each: weight / self._next for each, weight in self._weights.items()}
            self._next = 1.0

    def __len__(self) -> int:
        """Returns the number of classes kept."""
        return len(self._weights)

    def remove(self, uid: str) -> None:
        """Forgets a pod that is gone; its arrival still counts."""
        self._seen.discard(uid)

    def keep_only(self, uids: Collection[str]) -> None:
        """Forgets all pods except these."""
        self._seen.intersection_update(uids)

    def workload(self, nodes: Collection[HasDevices]) -> Workload:
        """Returns the same object until enough pods have come to look again, or there are twice or half as many nodes.
        `nodes` are all there are.
        """
        if self._arrived >= self._due or len(nodes) not in self._sizes:
            number = len(nodes)
            self._due = self._arrived + min(max(self._arrived, 1), RENEWED)
            self._sizes = range(number // 2 + 1, 2 * number) if number else range(1)
            self._workload = workload_of(self._weights, nodes)
        return self._workload


def workload_of(weights: Mapping[PodClass, float], nodes: Iterable[HasDevices]) -> Workload:
    """Returns the workload of these classes. `weights` are how often pods of each class come, in any unit."""
    popular = _popular(weights)
    if not popular:
        return NO_WORKLOAD
    gpus = _gpus_by_type(nodes)
    requested = [_requested_gpus(each.pods, gpus) for each in popular]
    amount = sum(each.share * sum(by_type.values()) for each, by_type in zip(popular, requested, strict=True))
    per_gpu, pressure = NO_HOST, dict.fromkeys(gpus, 0.0)
    if amount:
        cpu = sum(each.share * each.pods.host.cpu_milli for each in popular)
        memory = sum(each.share * each.pods.host.memory_mib for each in popular)
        per_gpu = HostAmount(round(cpu / amount), round(memory / amount))
        total = sum(count for count, _ in gpus.values())
        for each, by_type in zip(popular, requested, strict=True):
            for model, wanted in by_type.items():
                pressure[model] += each.share * wanted / amount * total / gpus[model][0]
    return Workload(classes=popular, per_gpu=per_gpu, pressure=pressure)


def _popular(weights: Mapping[PodClass, float]) -> tuple[Popular, ...]:
    """Returns the fewest classes that cover enough of the pods, most popular first. The fractions add up to 1."""
    ranked = sorted(weights.items(), key=lambda item: (-item[1], repr(item[0])))
    total, covered, chosen = sum(weights.values()), 0.0, []
    for pods, weight in ranked[:MOST_COUNTED]:
        if covered >= COVERED * total:
            break
        chosen.append((pods, weight))
        covered += weight
    return tuple(Popular(pods=pods, share=weight / covered) for pods, weight in chosen)


def _gpus_by_type(nodes: Iterable[HasDevices]) -> Mapping[str, tuple[int, int]]:
    """Returns the number of GPUs of each type, and the MiB of one of them."""
    found: dict[str, tuple[int, int]] = {}
    devices: Iterable[Device] = (device for node in nodes for device in node.devices)
    for device in devices:
        found[device.type] = found.get(device.type, (0, 0))[0] + 1, device.memory_mib
    return found


def _requested_gpus(pods: PodClass, gpus: Mapping[str, tuple[int, int]]) -> Mapping[str, float]:
    """Returns how many GPUs of each type one pod of the class requests, if it used each allowed GPU equally often."""
    allowed = {model: each for model, each in gpus.items() if pods.allows(model)}
    total = sum(count for count, _ in allowed.values())
    return {
        model: pods.need.count * pods.fraction(memory_mib) * count / total
        for model, (count, memory_mib) in allowed.items()
    }


def seeds(settings: RequestSettings) -> Iterator[tuple[PodClass, float]]:
    """Yields the classes of the pods that the settings name, and the number of each. Raises RequestError if one cannot
    be read.
    """
    names = settings.names
    known = {names.count, names.memory, names.memory_percentage, names.cores, *HOST_RESOURCES, *ANNOTATIONS}
    for usual in settings.usual_pods:
        for key, _ in usual.requests:
            if key not in known:
                raise RequestError("", key, f"distinguishes no pods; write one of {', '.join(sorted(known))}")
        pod = usual.pod()
        request = read_request(pod, settings)
        if request is None:
            raise RequestError("", names.count, f"is missing in {str(usual)!r}")
        yield class_of(replace(request, host=host_requested(pod))), float(usual.number)
