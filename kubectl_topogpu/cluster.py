"""A cluster as its objects describe it: each GPU, and which pods hold how much of it. No IO.

The extender's own ledger counts, so a command shows the numbers on which the next decision is taken.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from program.words import spaced
from proto.annotations.keys import DEVICES_ALLOCATED
from proto.annotations.memory_resize import resize_words
from proto.daemon_usage import DAEMON_LABELS
from proto.devices import Device, DeviceUUID
from proto.kubernetes.objects import Node, Pod, ResourceQuota
from scheduler_ext.capacity import unused
from scheduler_ext.capacity.pod_verdict import waits
from scheduler_ext.cluster.gangs import Gang, Gangs
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage, Snapshot
from scheduler_ext.decide.preempt import GpuHolder
from scheduler_ext.decide.reasons import out_of_service
from scheduler_ext.membership import membership_of
from scheduler_ext.requests import ContainerNeed, RequestError, RequestSettings, pod_key, read_needs

DELETED = "Deleted"
"""The phase of a pod that the API server no longer has, and whose containers run on."""


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
    """The pods that evictions would concern."""
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
    """A pod's part of one GPU at its peak: replicas, MiB, percent of the GPU's cores (0: no limit)."""

    pod: str
    """`namespace/name`."""
    phase: str
    replicas: int
    memory_mib: int
    cores: int
    asks: str = ""
    """The pod's request, if that was wanted: `2 × 8 000 MiB, 20 %`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuView:
    """`state` is why no pod may get it; empty if pods may."""

    usage: GpuUsage
    state: str = ""
    holders: tuple[HeldPart, ...] = ()

    @property
    def device(self) -> Device:
        return self.usage.device

    @property
    def is_free(self) -> bool:
        """Returns whether nothing of it is taken and all of it can be."""
        return not self.usage.replicas and self.serves

    @property
    def serves(self) -> bool:
        """Returns whether any pod may get it."""
        return not self.state

    @property
    def free_memory_mib(self) -> int:
        return unused.free_memory_mib(self.usage)


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
    ledger: Ledger
    settings: RequestSettings
    waiting: int = 0
    """Pods that request GPUs and have no node."""
    pods: tuple[Pod, ...] = ()
    """Pods of this selection, if they are wanted."""
    daemons: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    """Namespace and name of the pods with the node daemon's labels, by node. Anyone may write these labels."""
    holders: Mapping[str, tuple[GpuHolder, ...]] = field(default_factory=dict)
    """The pods that hold GPUs, by node, if decisions are wanted."""
    resizes: Mapping[str, str] = field(default_factory=dict)
    """How far wishes for other GPU memory have come, by pod, if holders are wanted."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Errors of nodes, pods and quotas that could not be read, by `kind name`."""

    gangs: Gangs = field(default_factory=Gangs)
    pending: Mapping[str, Pod] = field(default_factory=dict)
    """The members of groups that request GPUs and have no node, by UID."""

    def gang_of(self, pod: Pod) -> Gang | None:
        """Returns the pod's group, if its size is written on the pod: objects of groups are not read."""
        return self.gangs.of(pod, self.pending)

    def node(self, name: str) -> GpuNode | None:
        return next((node for node in self.nodes if node.name == name), None)

    def snapshot(self, pod: Pod | None = None) -> Snapshot:
        """Returns the state on which decisions are taken: about a pod, without its own GPUs."""
        return self.ledger.snapshot() if pod is None else self.ledger.snapshot_for(pod)


def read_cluster(objects: Objects, settings: RequestSettings, wanted: Wanted | None = None) -> GpuCluster:
    """Builds the cluster as the extender would after a start, by the extender's own ledger."""
    wanted = wanted or Wanted(decisions=True, fgd=True, waiting=True, asks=True)
    reading = _Reading(settings, wanted)
    for node in objects.nodes:
        reading.ledger.apply_node(node)
    for pod in objects.pods:
        reading.add(pod)
    reading.ledger.settle()
    reading.ledger.quotas.replace(objects.quotas)
    return reading.cluster()


class _Reading:
    """Objects with only the parts that are wanted."""

    def __init__(self, settings: RequestSettings, wanted: Wanted) -> None:
        self.ledger = Ledger(settings, fgd=wanted.fgd)
        self._settings = settings
        self._wanted = wanted
        self._names: dict[str, tuple[str, str, str]] = {}
        """Name, phase and request of each pod that holds GPUs, by UID."""
        self._holders: dict[str, list[GpuHolder]] = {}
        self._daemons: dict[str, list[tuple[str, str]]] = {}
        self._resizes: dict[str, str] = {}
        self._gangs = Gangs()
        self._pending: dict[str, Pod] = {}
        self._waiting = 0
        self._pods: list[Pod] = []

    def add(self, pod: Pod) -> None:
        if _is_daemon(pod):
            name = pod.metadata.namespace or "default", pod.metadata.name
            self._daemons.setdefault(pod.spec.node_name, []).append(name)
        asks = self._settings.names.are_requested_by(pod)
        self._gangs.apply_pod(pod, with_gpus=asks)
        if not asks and DEVICES_ALLOCATED not in pod.metadata.annotations:
            if self._wanted.fgd:
                self.ledger.apply_pod(pod)
            return
        self.ledger.apply_pod(pod)
        if waits(pod, self._settings):
            self._waiting += 1
            if membership_of(pod) is not None:
                self._pending[pod_key(pod)] = pod
            if self._wanted.waiting:
                self._pods.append(pod)
        elif self._wanted.holders and pod.spec.node_name and not pod.has_ended:
            words = request_words(pod, self._settings) if self._wanted.asks else ""
            self._names[pod_key(pod)] = pod.full_name, phase(pod), words
            if words := resize_words(pod.metadata.annotations):
                self._resizes[pod.full_name] = words
            if self._wanted.decisions:
                self._holders.setdefault(pod.spec.node_name, []).append(_holder(pod))

    def cluster(self) -> GpuCluster:
        ledger, names = self.ledger, self._names
        usages = ledger.nodes.usages() if self._wanted.holders else {}
        broken = ledger.nodes.broken()
        nodes = [self._gpu_node(usage) for usage in usages.values()]
        nodes += [GpuNode(name=name, problem=reason) for name, reason in broken.items()]
        problems = {f"node {name}": reason for name, reason in broken.items()}
        for subject, problem in ledger.problems().items():
            kind, _, name = subject.partition(" ")
            problems.setdefault(f"{kind} {names[name][0] if name in names else name}", problem)
        return GpuCluster(
            nodes=tuple(sorted(nodes, key=lambda node: node.name)),
            ledger=ledger,
            settings=self._settings,
            waiting=self._waiting,
            gangs=self._gangs,
            pending=self._pending,
            pods=tuple(self._pods),
            daemons=self._daemons,
            holders={node: tuple(holders) for node, holders in self._holders.items()},
            resizes=self._resizes,
            problems=problems,
        )

    def _gpu_node(self, usage: NodeUsage) -> GpuNode:
        node, alone = usage.node, self.ledger.alone(usage.node.name)
        held: dict[DeviceUUID, list[HeldPart]] = {}
        for uid, record in alone.held.items() if alone is not None else ():
            name, shown, asks = self._names.get(uid) or (record.gpus.pod or uid, DELETED, "")
            for uuid, part in record.on(node.name).footprints.items():
                each = HeldPart(
                    pod=name,
                    phase=shown,
                    replicas=part.replicas,
                    memory_mib=part.memory_mib,
                    cores=part.cores,
                    asks=asks,
                )
                held.setdefault(uuid, []).append(each)
        gpus = tuple(
            GpuView(
                usage=gpu,
                state=out_of_service(node, gpu.device),
                holders=tuple(sorted(held.get(gpu.device.uuid, ()), key=lambda each: each.pod)),
            )
            for gpu in sorted(usage.gpus, key=lambda gpu: gpu.device.index)
        )
        return GpuNode(name=node.name, gpus=gpus, usage=usage, undecided=usage.undecided)


def _is_daemon(pod: Pod) -> bool:
    labelled = DAEMON_LABELS.items() <= pod.metadata.labels.items()
    return labelled and pod.is_running and pod.metadata.deletion_timestamp is None


def _holder(pod: Pod) -> GpuHolder:
    return GpuHolder(
        uid=pod_key(pod),
        priority=pod.spec.priority or 0,
        created=pod.metadata.creation_timestamp or "",
        name=pod.metadata.name,
        namespace=pod.metadata.namespace or "default",
        leaving=pod.metadata.deletion_timestamp is not None,
    )


def request_words(pod: Pod, settings: RequestSettings) -> str:
    """Returns `2 × 8 000 MiB, 20 %` for each container that requests GPUs."""
    try:
        needs = read_needs(pod.all_containers, settings)
    except RequestError as error:
        return str(error)
    return " + ".join(_need_words(need) for need in needs if need is not None)


def _need_words(need: ContainerNeed) -> str:
    memory = f"{need.memory_percentage} % of the memory" if need.is_relative else f"{spaced(need.memory_mib)} MiB"
    cores = f", {need.cores} %" if need.cores else ""
    return f"{need.count} × {'whole memory' if need.is_relative and need.memory_percentage == 100 else memory}{cores}"


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
