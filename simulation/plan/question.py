"""The question of a plan: a cluster, the pods that come to it, and the settings of the runs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean

from program.words import gib
from proto.kubernetes.requests import NO_HOST, host_requested
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.registered import RegisteredNode
from scheduler_ext.policies import parse_gpu_policy, parse_node_policy
from scheduler_ext.requests import ContainerNeed, GpuRequest, RequestError, RequestSettings, read_request
from scheduler_ext.workload import Workload, class_of
from simulation.plan.gauge import workload_for
from simulation.plan.objects import Arrival, Described
from simulation.words import HostPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    cluster: Described
    arrivals: tuple[Arrival, ...] = ()
    before: Described | None = None
    """The cluster without the nodes that are added, and with those that are drained; None if there are none."""
    settings: RequestSettings = field(default_factory=RequestSettings)
    hosts: HostPolicy = HostPolicy.LEAST_ALLOCATED
    replays: bool = False
    """True if pods come and go at their times. Otherwise they come one after the other, and none leaves."""
    fill: float | None = None
    """Draw more pods at random until they request this percentage of all GPUs."""
    homes: bool = False
    """True if the outcome names the node of each pod."""

    def under(self, policy: str) -> RequestSettings:
        node, _, gpu = policy.partition("/")
        return replace(self.settings, node_policy=parse_node_policy(node), gpu_policy=parse_gpu_policy(gpu))


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """The request of pods of one kind. `amount` is in whole GPUs, `gpus` is their number."""

    text: str
    gpus: int = 0
    amount: float = 0.0
    several: bool = False
    """True if a container requests several GPUs."""


class Kinds:
    """The requests of the pods of a plan, by kind."""

    def __init__(self, question: Question) -> None:
        ledger = Ledger(question.settings)
        ledger.replace_nodes(question.cluster.nodes)
        self.nodes: Sequence[RegisteredNode] = [usage.node for usage in ledger.snapshot().nodes.values()]
        memory = [device.memory_mib for node in self.nodes for device in node.devices]
        self.gpus = len(memory)
        self._mean_mib = round(mean(memory)) if memory else 0
        self._settings = question.settings
        self._known: dict[bytes, Asking] = {}

    def asking(self, arrival: Arrival) -> Asking:
        found = self._known.get(arrival.kind)
        if found is None:
            found = self._known[arrival.kind] = self._read(arrival)
        return found

    def workload(self, arrivals: Iterable[Arrival]) -> Workload:
        return workload_for(arrivals, self.nodes, self._settings)

    def _read(self, arrival: Arrival) -> Asking:
        pod = arrival.pod(arrival.name)
        host = host_requested(pod)
        beside = f"{host.cpu_milli / 1000:g} CPUs and {gib(host.memory_mib)}" if host != NO_HOST else ""
        try:
            request = read_request(pod, self._settings)
        except RequestError as error:
            return Asking(text=f"a request that cannot be read: {error}")
        if request is None:
            return Asking(text=beside or "nothing")
        needs = [need for need in request.needs if need is not None]
        pods = class_of(request)
        return Asking(
            text=f"{' + '.join(map(_words, needs))}{_wish(request)}{', ' if beside else ''}{beside}",
            gpus=sum(need.count for need in needs),
            amount=pods.need.count * pods.fraction(self._mean_mib),
            several=any(need.count > 1 for need in needs),
        )


def _words(need: ContainerNeed) -> str:
    """Returns `2 x GPU, 30000 MiB, 20 % of cores`."""
    memory = f"{need.memory_percentage} % of memory" if need.is_relative else gib(need.memory_mib)
    cores = f", {need.reserved_cores} % of cores" if need.reserved_cores else ""
    whole = need.is_relative and need.memory_percentage == 100
    gpus = "1 GPU" if need.count == 1 else f"{need.count} GPUs"
    return gpus if whole else f"{gpus} with {memory}{cores}"


def _wish(request: GpuRequest) -> str:
    wanted = request.filter
    types = f" of type {' or '.join(wanted.types)}" if wanted.types else ""
    return f"{types}{' by UUID' if wanted.uuids is not None else ''}"


def quantities(amounts: Mapping[str, int]) -> dict[str, str | int | float]:
    """Returns the limits of a container, without what is 0."""
    return {name: str(amount) for name, amount in amounts.items() if amount}
