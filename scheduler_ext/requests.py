"""Reads the request of a pod: GPUs, memory and cores of each container, filters and policies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from proto.annotations import keys
from proto.decoding import shortened
from proto.devices import MIG_RESOURCE_PREFIX, Device, DeviceUUID
from proto.environment import (
    DISABLE_CONTROL,
    LEGACY_VERSION,
    LIFTING_PREFIXES,
    TRUE,
    VISIBLE_DEVICES,
    VOID,
    chosen_by,
    lifted_by,
)
from proto.kubernetes.objects import Container, Pod
from proto.kubernetes.requests import NO_HOST, HostAmount, exclusive_cpus, host_requested
from proto.quantity import QuantityError, integer_quantity
from scheduler_ext.domains.levels import LEVELS, WISHES, DomainWish, WishError, read_wish
from scheduler_ext.policies import GpuPolicy, NodePolicy, Policies, PolicyError, parse_gpu_policy, read_policies
from scheduler_ext.quota_class import QuotaClass, quota_class
from scheduler_ext.settings import DEFAULT_SCHEDULER_NAME, BypassMode, CorePolicy
from scheduler_ext.usual_pods import UsualPods

_INT32_MAX = 2**31 - 1
MOST_GPU_CONTAINERS = 16
MOST_GPUS = 256
MOST_CONTAINERS = 256
"""The most containers of a pod that requests GPUs, those without GPUs included: each is judged for every kind
of node.
"""
LONGEST_LIST = 16_384
"""Characters of a comma list of GPU types or UUIDs: about 400 UUIDs."""
LONGEST_WORDS = 512
"""Characters of every other annotation that is read."""
_LISTS = (keys.USE_GPU_TYPE, keys.NO_USE_GPU_TYPE, keys.USE_GPU_UUID, keys.NO_USE_GPU_UUID)
_WORDS = (
    keys.NODE_POLICY,
    keys.GPU_POLICY,
    keys.SCORING_WEIGHTS,
    keys.VGPU_MODE,
    keys.NUMA_BIND,
    keys.REQUIRED_TOPOLOGY,
    keys.PREFERRED_TOPOLOGY,
)
_LONGEST = {**dict.fromkeys(_LISTS, LONGEST_LIST), **dict.fromkeys(_WORDS, LONGEST_WORDS)}
_FILTERING = frozenset({*_LISTS, keys.VGPU_MODE})
_CHOICES = {
    VISIBLE_DEVICES: "chooses GPUs past the scheduler; remove it and ask for GPUs by resource",
    LEGACY_VERSION: f"shows every GPU without {VISIBLE_DEVICES}; remove it, or set {VISIBLE_DEVICES} to {VOID}",
}
_OTHER_CHOICE = "gets devices of the node past the scheduler; remove it"


class RequestError(ValueError):
    """A request cannot be read. `container` is empty if the pod's annotations are at fault."""

    def __init__(self, container: str, key: str, problem: str) -> None:
        container = shortened(container)
        super().__init__(f"container {container}: {key}: {problem}" if container else f"{key}: {problem}")
        self.container = container
        self.key = key
        self.problem = problem


class TooMany(RequestError):
    """The pod requests GPUs for more containers, or more GPUs, or has longer annotations, than one pod may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceNames:
    """Names of the resources that a container may request. A quota's keys are `limits.` and the name."""

    count: str = keys.RESOURCE_COUNT
    memory: str = keys.RESOURCE_MEMORY
    memory_percentage: str = keys.RESOURCE_MEMORY_PERCENTAGE
    cores: str = keys.RESOURCE_CORES
    priority: str = keys.RESOURCE_PRIORITY

    def are_requested_by(self, pod: Pod) -> bool:
        """Returns whether a container of the pod requests GPUs, memory or cores of them."""
        names = {self.count, self.memory, self.memory_percentage, self.cores}
        resources = (each.resources for each in pod.all_containers)
        return any(not names.isdisjoint((*each.limits, *each.requests)) for each in resources)


class ContainerKind(StrEnum):
    INIT = "init"
    """An init container that ends before the next container starts."""
    SIDECAR = "sidecar"
    """An init container that keeps running beside all later ones."""
    APP = "app"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSettings:
    """Names and defaults of the cluster. A memory request times `memory_factor` is in MiB."""

    names: ResourceNames = field(default_factory=ResourceNames)
    default_memory_mib: int = 0
    """The memory for containers that request none; 0 gives them the whole GPU."""
    default_cores: int = 0
    memory_factor: int = 1
    node_policy: NodePolicy = NodePolicy.BINPACK
    gpu_policy: GpuPolicy = field(default_factory=lambda: parse_gpu_policy("spread"))
    most_gpu_containers: int = MOST_GPU_CONTAINERS
    """The most containers of one pod that may request GPUs, init containers and sidecars included."""
    usual_pods: tuple[UsualPods, ...] = ()
    """The pods that policy `fgd` expects before it has seen any."""
    most_gpus: int = MOST_GPUS
    """The most GPUs of one container. 32 GPUs in one machine with seven MIG instances each are fewer."""
    deny_bypass: BypassMode = BypassMode.DENY
    """The answer to variables that choose GPUs or lift limits: DENY refuses them here too."""
    core_policy: CorePolicy = CorePolicy.DEFAULT
    """The cluster's GPU_CORE_UTILIZATION_POLICY."""
    topology_levels: tuple[str, ...] = LEVELS
    """The labels of nodes that name domains, from wide to narrow."""
    scheduler_name: str = DEFAULT_SCHEDULER_NAME
    """The schedulerName of pods that request GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerNeed:
    """`count` different GPUs with these amounts of each."""

    count: int
    memory_mib: int
    """The amount is 0 if the container requests only a percentage."""
    memory_percentage: int | None
    cores: int
    """Percent of one GPU as requested, also above 100: the device score counts it so. 0 means no limit."""
    priority: int | None = None
    """The priority for the limits inside the container; it does not affect the choice of GPUs."""
    container: str = field(default="", compare=False)
    """The name of the container."""
    lifted_by: str = ""
    """The variable of the container that lifts its limits, without the position of a GPU; empty if there is none."""

    @property
    def is_relative(self) -> bool:
        """Returns whether the container gets a percentage of a GPU's memory: an absolute amount wins over that."""
        return not self.memory_mib and self.memory_percentage is not None

    @property
    def reserved_cores(self) -> int:
        """Returns the cores that are taken, in percent of a GPU: at most one GPU."""
        return min(self.cores, 100)

    def is_beyond(self, device: Device) -> bool:
        """Returns whether even the whole GPU is too small."""
        return self.reserved_mib(device.memory_mib) > device.memory_mib or self.reserved_cores > device.cores

    def reserved_mib(self, total_mib: int) -> int:
        """Returns the MiB that are taken of a GPU with `total_mib`."""
        return total_mib * (self.memory_percentage or 0) // 100 if self.is_relative else self.memory_mib


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFilter:
    """GPUs that the pod's author allows; None does not restrict. Types are lower case and match anywhere."""

    # Each list is searched once for each type of GPU, not for each GPU.
    _allowed: dict[str, bool] = field(default_factory=dict, init=False, repr=False, compare=False)

    types: tuple[str, ...] | None = None
    refused_types: tuple[str, ...] = ()
    uuids: frozenset[DeviceUUID] | None = None
    refused_uuids: frozenset[DeviceUUID] = frozenset()
    modes: str | None = None
    """A GPU's mode must occur in this text."""

    def allows_type(self, model: str) -> bool:
        """Returns whether a GPU of this type may serve the pod."""
        allowed = self._allowed.get(model)
        if allowed is None:
            lower = model.lower()
            named = self.types is None or any(word in lower for word in self.types)
            allowed = self._allowed[model] = named and not any(word in lower for word in self.refused_types)
        return allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRequest:
    """The request of a pod. `needs` and `kinds` have one entry per container, init containers first. A need of None is
    that of a container without GPUs.
    """

    def __hash__(self) -> int:
        """Returns a hash of the pod alone: to hash the whole request takes longer than to compare it once."""
        return hash(self.uid)

    pod: str
    namespace: str
    uid: str
    quota_class: QuotaClass
    needs: tuple[ContainerNeed | None, ...]
    kinds: tuple[ContainerKind, ...]
    policies: Policies
    filter: DeviceFilter = field(default_factory=DeviceFilter)
    numa_bound: bool = False
    host: HostAmount = NO_HOST
    """CPU and memory that the pod requests of its node, if the node policy reads them."""
    cpus: tuple[int, ...] = ()
    """The CPUs that kubelet's static CPU manager gives to each container alone; empty without any."""
    wish: DomainWish | None = None
    """The domain for the pod's group."""


def read_request(pod: Pod, settings: RequestSettings) -> GpuRequest | None:
    """Returns the pod's request; None if no container requests a GPU. Raises RequestError with container, key and
    problem.

    Input sizes are limited, whatever is in the pod, so that later work is limited too.
    """
    needs = read_needs(pod.all_containers, settings)
    if not any(needs):
        return None
    if settings.deny_bypass is BypassMode.DENY:
        _check_choices(pod.all_containers, needs)
    annotations = pod.metadata.annotations
    check_lengths(annotations)
    try:
        policies = read_policies(annotations, settings.node_policy, settings.gpu_policy)
    except PolicyError as error:
        raise RequestError("", error.key, error.problem) from error
    return GpuRequest(
        pod=pod.metadata.name,
        namespace=pod.metadata.namespace or "default",
        uid=pod_key(pod),
        quota_class=quota_class(pod),
        needs=needs,
        kinds=container_kinds(pod),
        policies=policies,
        filter=device_filter(annotations),
        numa_bound=annotations.get(keys.NUMA_BIND, "") in TRUE,
        host=host_requested(pod) if policies.node is NodePolicy.FGD else NO_HOST,
        cpus=exclusive_cpus(pod),
        wish=_wish(annotations, settings),
    )


def readable_request(pod: Pod, settings: RequestSettings) -> GpuRequest | None:
    """Returns the pod's request; None also for one that cannot be read."""
    try:
        return read_request(pod, settings)
    except RequestError:
        return None


def read_needs(asking: Sequence[Container], settings: RequestSettings) -> tuple[ContainerNeed | None, ...]:
    """Returns what each container requests. Raises RequestError, also for a pod that requests more than it may."""
    needs: list[ContainerNeed | None] = []
    left, key = settings.most_gpu_containers, settings.names.count
    for container in asking:
        need = _need(container, settings)
        needs.append(need)
        if need is None:
            continue
        if not left:
            problem = f"more than {settings.most_gpu_containers} containers of the pod ask for GPUs; split the pod"
            raise TooMany(container.name, key, problem)
        left -= 1
        if need.count > settings.most_gpus:
            problem = (
                f"{shortened(str(need.count))} GPUs are more than any node has; "
                f"memory is asked for as {settings.names.memory}, in MiB"
            )
            raise TooMany(container.name, key, problem)
    if left < settings.most_gpu_containers and len(needs) > MOST_CONTAINERS:
        raise TooMany("", "spec", f"{len(needs)} containers; a pod that asks for GPUs has at most {MOST_CONTAINERS}")
    return tuple(needs)


def container_kinds(pod: Pod) -> tuple[ContainerKind, ...]:
    inits = (
        ContainerKind.SIDECAR if container.is_sidecar else ContainerKind.INIT for container in pod.spec.init_containers
    )
    return (*inits, *(ContainerKind.APP for _ in pod.spec.containers))


def pod_key(pod: Pod) -> str:
    """Returns the UID; `<namespace>/<name>` for a pod without one, written by hand."""
    return pod.metadata.uid or f"{pod.metadata.namespace or 'default'}/{pod.metadata.name}"


def gpu_count(container: Container, names: ResourceNames) -> int:
    """Returns the number of GPUs that the container requests; 0 if that cannot be read."""
    try:
        return _amount(container, names.count) or 0
    except RequestError:
        return 0


def _need(container: Container, settings: RequestSettings) -> ContainerNeed | None:
    names = settings.names
    count = _amount(container, names.count)
    if not count:
        return None
    memory_mib = _memory_mib(container, names.memory, settings.memory_factor)
    percent = _percent(container, names.memory_percentage)
    if percent is None and memory_mib == 0:
        memory_mib = settings.default_memory_mib
        percent = None if memory_mib else 100
    cores = _amount(container, names.cores)
    return ContainerNeed(
        count=count,
        memory_mib=memory_mib,
        memory_percentage=percent,
        cores=settings.default_cores if cores is None else min(cores, _INT32_MAX),
        priority=_amount(container, names.priority),
        container=container.name,
        lifted_by=_lifted_by(container, settings),
    )


def _lifted_by(container: Container, settings: RequestSettings) -> str:
    """Even where the other variables are not refused, a container without HAMi-core gets no part of a GPU."""
    found = lifted_by(container.env, settings.core_policy) if container.env else ()
    denies = settings.deny_bypass is BypassMode.DENY
    name = next((each for each in found if denies or each == DISABLE_CONTROL), "")
    return next((prefix for prefix in LIFTING_PREFIXES if name.startswith(prefix)), name)


def _check_choices(containers: Sequence[Container], needs: Sequence[ContainerNeed | None]) -> None:
    """Checks the variables of a pod with GPUs. Raises RequestError for the first by which one of its containers would
    see others.
    """
    for container, need in zip(containers, needs, strict=True):
        gpus_set = need is not None or asks_for_instances(container)
        for name in chosen_by(container.env, gpus_set=gpus_set) if container.env else ():
            raise RequestError(container.name, f"env {name}", choice_problem(name))


def _memory_mib(container: Container, key: str, factor: int) -> int:
    amount = (_amount(container, key) or 0) * factor
    if amount > _INT32_MAX:
        raise RequestError(
            container.name,
            key,
            f"{shortened(str(amount))} MiB is more than any GPU has; "
            "the number counts MiB already, so 8 GiB is written 8192",
        )
    return amount


def _percent(container: Container, key: str) -> int | None:
    """Returns the percentage; None if unset, for which 0 counts too. Raises RequestError."""
    percent = _amount(container, key)
    if percent is not None and percent > 100:
        raise RequestError(
            container.name, key, f"must be an integer between 0 and 100, found {shortened(str(percent))}"
        )
    return percent or None


def _amount(container: Container, key: str) -> int | None:
    """Returns the limit, or else the request, or else None. Raises RequestError."""
    resources = container.resources
    value = resources.limits.get(key, resources.requests.get(key))
    if value is None:
        return None
    try:
        amount = integer_quantity(value)
    except QuantityError as error:
        raise RequestError(container.name, key, str(error)) from error
    if amount < 0:
        raise RequestError(container.name, key, f"must not be negative, found {value}")
    return amount


def check_lengths(annotations: Mapping[str, str]) -> None:
    """Raises TooMany for an annotation that would take long to read."""
    if _LONGEST.keys().isdisjoint(annotations):
        return
    for key, longest in _LONGEST.items():
        length = len(annotations.get(key, ""))
        if length > longest:
            raise TooMany("", key, f"has {length} characters; write at most {longest}")


def asks_for_instances(container: Container) -> bool:
    """Returns whether the container requests MIG instances by their profile, which kubelet and the daemon give out
    without a decision.
    """
    limits = container.resources.limits
    return any(name.startswith(MIG_RESOURCE_PREFIX) and str(amount) != "0" for name, amount in limits.items())


def choice_problem(name: str) -> str:
    """Returns what is wrong with a variable by which a container gets devices that were not decided for it."""
    return _CHOICES.get(name, _OTHER_CHOICE)


_EVERY_GPU = DeviceFilter()


def device_filter(annotations: Mapping[str, str]) -> DeviceFilter:
    """Returns which GPUs the pod's author allows."""
    if _FILTERING.isdisjoint(annotations):
        return _EVERY_GPU
    types = _words(annotations.get(keys.USE_GPU_TYPE, ""))
    refused_types = _words(annotations.get(keys.NO_USE_GPU_TYPE, "")) or ()
    uuids = _words(annotations.get(keys.USE_GPU_UUID, ""))
    refused_uuids = _words(annotations.get(keys.NO_USE_GPU_UUID, "")) or ()
    return DeviceFilter(
        types=None if types is None else tuple(word.lower() for word in types),
        refused_types=tuple(word.lower() for word in refused_types),
        uuids=None if uuids is None else frozenset(map(DeviceUUID, uuids)),
        refused_uuids=frozenset(map(DeviceUUID, refused_uuids)),
        modes=annotations.get(keys.VGPU_MODE),
    )


def _wish(annotations: dict[str, str], settings: RequestSettings) -> DomainWish | None:
    if WISHES.isdisjoint(annotations):
        return None
    try:
        return read_wish(annotations, settings.topology_levels)
    except WishError as error:
        raise RequestError("", error.key, error.problem) from error


def _words(text: str) -> tuple[str, ...] | None:
    """Returns the words of a comma list; None for a blank one, which restricts nothing."""
    if not text.strip():
        return None
    return tuple(word.strip() for word in text.split(",") if word.strip())
