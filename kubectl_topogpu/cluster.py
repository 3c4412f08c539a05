"""A cluster as its objects describe it: each GPU, and which pods hold how much of it. No IO.

The extender's own ledger counts, so a command shows the numbers on which the next decision is taken.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from program.words import spaced
from proto.annotations.keys import DEVICES_ALLOCATED
from proto.devices import Device, DeviceUUID
from proto.kubernetes.objects import Node, Pod, ResourceQuota
from scheduler_ext.capacity import unused
from scheduler_ext.cluster.bound import read_bound
from scheduler_ext.cluster.nodes import Nodes
from scheduler_ext.cluster.records import PodRecord
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage, Snapshot
from scheduler_ext.decide.reasons import out_of_service
from scheduler_ext.requests import ContainerNeed, RequestError, RequestSettings, pod_key, read_needs

if TYPE_CHECKING:  # the parts that decide take a fifth of the start; most commands do not need them
    from scheduler_ext.cluster.ledger import Ledger
    from scheduler_ext.decide.preempt import GpuHolder

_DAEMON = {"app.kubernetes.io/name": "topogpu", "app.kubernetes.io/component": "device-plugin"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Objects:
    """The objects that `kubectl get nodes,pods,resourcequotas -A -o json` lists. `pods` are read once, one by one.
    `notes` name what is missing.
    """

    nodes: tuple[Node, ...] = ()
    pods: Iterable[Pod] = ()
    quotas: tuple[ResourceQuota, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The parts of a cluster that a command needs: less takes less time and memory."""

    decisions: bool = False
    """The ledger, on which decisions are taken."""
    fgd: bool = False
    """The inputs of the policy `fgd`: CPU and memory of all pods, and which pods come often."""
    waiting: bool = False
    """The pods that wait."""
    asks: bool = False
    """The request of each pod."""
    holders: bool = True
    """The nodes, and which pods hold their GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPart:
    """A pod's part of one GPU at its peak: slots, MiB, percent of the GPU's cores (0: no limit)."""

    pod: str
    """`namespace/name`."""
    phase: str
    slots: int
    memory_mib: int
    cores: int
    asks: str = ""
    """The pod's request, if that was wanted: `2 × 8 000 MiB, 20 %`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuView:
    usage: GpuUsage
    cordoned: bool = False
    holders: tuple[HeldPart, ...] = ()

    @property
    def device(self) -> Device:
        return self.usage.device

    @property
    def is_free(self) -> bool:
        """Returns whether nothing of it is taken and all of it can be."""
        return not self.usage.slots and self.serves

    @property
    def serves(self) -> bool:
        """Returns whether any pod may get it."""
        return self.device.healthy and not self.cordoned

    @property
    def free_memory_mib(self) -> int:
        return unused.free_memory_mib(self.usage)

    @property
    def state(self) -> str:
        """Returns one word for why no pod may get it, or `` if pods may."""
        return out_of_service(healthy=self.device.healthy, cordoned=self.cordoned)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNode:
    """One node. `problem` is why none of its GPUs can be given out; then `gpus` is empty. `undecided` pods hold GPUs
    of it without a decision.
    """

    name: str
    gpus: tuple[GpuView, ...] = ()
    usage: NodeUsage | None = None
    undecided: tuple[str, ...] = ()
    problem: str = ""

    @property
    def is_simulated(self) -> bool:
        """Returns whether its GPUs are not real."""
        return self.usage is not None and self.usage.node.simulated


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCluster:
    """The cluster. `nodes` are those that have or should have GPUs, by name."""

    nodes: tuple[GpuNode, ...]
    ledger: "Ledger | None"
    """None unless decisions are wanted."""
    settings: RequestSettings
    waiting: int = 0
    """Pods that request GPUs and have no node."""
    pods: tuple[Pod, ...] = ()
    """Pods of this selection, if they are wanted."""
    daemons: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    """Namespace and name of the pods with the node daemon's labels, by node. Anyone may write these labels."""
    holders: Mapping[str, "tuple[GpuHolder, ...]"] = field(default_factory=dict)
    """The pods that hold GPUs, by node, if decisions are wanted."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Errors of nodes, pods and quotas that could not be read, by `kind name`."""

    def node(self, name: str) -> GpuNode | None:
        return next((node for node in self.nodes if node.name == name), None)

    def snapshot(self, pod: Pod | None = None) -> Snapshot:
        """Returns the state on which decisions are taken: about a pod, without its own GPUs."""
        ledger = self.deciding()
        return ledger.snapshot() if pod is None else ledger.snapshot_for(pod)

    def deciding(self) -> "Ledger":
        """Returns the ledger. Raises ValueError if no decisions were wanted."""
        if self.ledger is None:
            raise ValueError("no decisions were wanted of this cluster")
        return self.ledger


def read_cluster(objects: Objects, settings: RequestSettings, wanted: Wanted | None = None) -> GpuCluster:
    """Builds the cluster as the extender would after a start.

    Without decisions, what the pods hold is summed by the ledger's own part for that.
    """
    wanted = wanted or Wanted(decisions=True, fgd=True, waiting=True, asks=True)
    reading = _Reading(settings, wanted)
    for node in objects.nodes:
        reading.tell(node)
    for pod in objects.pods:
        reading.add(pod)
    if reading.ledger is not None:
        reading.ledger.quotas.replace(objects.quotas)
    return reading.cluster()


class _Reading:
    """Objects of which no more is kept than is wanted."""

    def __init__(self, settings: RequestSettings, wanted: Wanted) -> None:
        self.ledger = _ledger(settings, wanted.fgd) if wanted.decisions else None
        self._settings = settings
        self._wanted = wanted
        names = settings.names
        self._resources = frozenset((names.count, names.memory, names.memory_percentage, names.cores))
        self._nodes = Nodes()
        self._problems: dict[str, str] = {}
        self._held: dict[tuple[str, DeviceUUID], list[HeldPart]] = {}
        self._holders: dict[str, list[GpuHolder]] = {}
        self._daemons: dict[str, list[tuple[str, str]]] = {}
        self._waiting = 0
        self._pods: list[Pod] = []

    def tell(self, node: Node) -> None:
        if self._wanted.holders:
            self._nodes.apply(node, self._settings.names.count)
        if self.ledger is not None:
            self.ledger.apply_node(node)

    def add(self, pod: Pod) -> None:
        if _is_daemon(pod):
            name = pod.metadata.namespace or "default", pod.metadata.name
            self._daemons.setdefault(pod.spec.node_name, []).append(name)
        asks = self._asks_for_gpus(pod)
        if not asks and DEVICES_ALLOCATED not in pod.metadata.annotations:
            if self._wanted.fgd and self.ledger is not None:
                self.ledger.apply_pod(pod)
            return
        if self.ledger is not None:
            self.ledger.apply_pod(pod)
        if asks and not pod.spec.node_name and not pod.has_ended:
            self._waiting += 1
            if self._wanted.waiting:
                self._pods.append(pod)
        record = read_bound(pod, self._settings.names) if self._wanted.holders else None
        if record is not None:
            self._hold(pod, record)

    def _hold(self, pod: Pod, record: PodRecord) -> None:
        name, shown = pod_name(pod), phase(pod)
        self._nodes.add(record)
        if record.problem:
            self._problems[f"pod {name}"] = record.problem
        asked = asked_for(pod, self._settings) if self._wanted.asks else ""
        for uuid, part in record.gpus.footprints.items():
            self._held.setdefault((record.node, uuid), []).append(
                HeldPart(
                    pod=name, phase=shown, slots=part.slots, memory_mib=part.memory_mib, cores=part.cores, asks=asked
                )
            )
        if self._wanted.decisions:
            self._holders.setdefault(record.node, []).append(_holder(pod))

    def _asks_for_gpus(self, pod: Pod) -> bool:
        return any(
            not self._resources.isdisjoint(asked)
            for container in pod.all_containers
            for asked in (container.resources.limits, container.resources.requests)
        )

    def cluster(self) -> GpuCluster:
        nodes = [self._gpu_node(usage) for usage in self._nodes.usages().values()]
        broken = {
            name: reason.partition(": ")[2] for name, reason in self._nodes.unregistered().items() if ": " in reason
        }
        nodes += [GpuNode(name=name, problem=reason) for name, reason in broken.items()]
        problems = {} if self.ledger is None else self.ledger.problems()
        quotas = {subject: text for subject, text in problems.items() if subject.startswith("resourcequota")}
        return GpuCluster(
            nodes=tuple(sorted(nodes, key=lambda node: node.name)),
            ledger=self.ledger,
            settings=self._settings,
            waiting=self._waiting,
            pods=tuple(self._pods),
            daemons=self._daemons,
            holders={node: tuple(holders) for node, holders in self._holders.items()},
            problems={**{f"node {name}": reason for name, reason in broken.items()}, **self._problems, **quotas},
        )

    def _gpu_node(self, usage: NodeUsage) -> GpuNode:
        node = usage.node
        gpus = tuple(
            GpuView(
                usage=gpu,
                cordoned=gpu.device.uuid in node.cordoned,
                holders=tuple(sorted(self._held.get((node.name, gpu.device.uuid), ()), key=lambda each: each.pod)),
            )
            for gpu in sorted(usage.gpus, key=lambda gpu: gpu.device.index)
        )
        return GpuNode(name=node.name, gpus=gpus, usage=usage, undecided=usage.undecided)


def _is_daemon(pod: Pod) -> bool:
    labelled = _DAEMON.items() <= pod.metadata.labels.items()
    return labelled and pod.is_running and pod.metadata.deletion_timestamp is None


def _ledger(settings: RequestSettings, fgd: bool) -> "Ledger":
    from scheduler_ext.cluster.ledger import Ledger  # noqa: PLC0415 - see above

    return Ledger(settings, fgd=fgd)


def _holder(pod: Pod) -> "GpuHolder":
    from scheduler_ext.decide.preempt import GpuHolder  # noqa: PLC0415 - see above

    return GpuHolder(
        uid=pod_key(pod),
        priority=pod.spec.priority or 0,
        created=pod.metadata.creation_timestamp or "",
        name=pod.metadata.name,
        namespace=pod.metadata.namespace or "default",
        leaving=pod.metadata.deletion_timestamp is not None,
    )


def asked_for(pod: Pod, settings: RequestSettings) -> str:
    """Returns `2 × 8 000 MiB, 20 %` for each container that requests GPUs."""
    try:
        needs = read_needs(pod.all_containers, settings)
    except RequestError as error:
        return str(error)
    return " + ".join(_asked(need) for need in needs if need is not None)


def _asked(need: ContainerNeed) -> str:
    memory = f"{need.memory_percent} % of the memory" if need.is_relative else f"{spaced(need.memory_mib)} MiB"
    cores = f", {need.cores} %" if need.cores else ""
    return f"{need.count} × {'whole memory' if need.is_relative and need.memory_percent == 100 else memory}{cores}"


def pod_name(pod: Pod) -> str:
    """Returns `namespace/name`."""
    return f"{pod.metadata.namespace or 'default'}/{pod.metadata.name}"


def phase(pod: Pod) -> str:
    """Returns the phase as `kubectl get pods` shows it: `Terminating` while the pod is being deleted."""
    if pod.metadata.deletion_timestamp is not None and not pod.has_ended:
        return "Terminating"
    return pod.status.phase or "Unknown"


def gpus_named(cluster: GpuCluster, text: str) -> Iterable[tuple[GpuNode, GpuView]]:
    """Returns the GPUs named by `node/index`, a UUID, or the beginning of one."""
    node_name, _, index = text.rpartition("/")
    for node in cluster.nodes:
        for gpu in node.gpus:
            begins = not node_name and len(text) > len("GPU-") and gpu.device.uuid.startswith(text)
            if begins or (node.name, str(gpu.device.index)) == (node_name, index):
                yield node, gpu
