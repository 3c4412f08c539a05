"""A cluster as its objects describe it: each GPU, and which pods hold how much of it. No IO.

The extender's own ledger counts, so a command shows the numbers on which the next decision is taken.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from proto.devices import Device, DeviceUUID
from proto.kubernetes.objects import Node, Pod, ResourceQuota
from scheduler_ext.cluster.holdings import Holding
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage, Snapshot
from scheduler_ext.outlook import unused
from scheduler_ext.requests import RequestSettings, pod_key
from scheduler_ext.scheduling.preempt import Holder


@dataclass(frozen=True, slots=True, kw_only=True)
class Objects:
    """The objects that `kubectl get nodes,pods,resourcequotas -A -o json` lists."""

    nodes: tuple[Node, ...] = ()
    pods: tuple[Pod, ...] = ()
    quotas: tuple[ResourceQuota, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A pod's part of one GPU at its peak: slots, MiB, percent of the GPU's cores (0: no limit)."""

    pod: str
    """`namespace/name`."""
    phase: str
    slots: int
    memory_mib: int
    cores: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    usage: GpuUsage
    cordoned: bool = False
    holders: tuple[Held, ...] = ()

    @property
    def device(self) -> Device:
        return self.usage.device

    @property
    def is_free(self) -> bool:
        """Tells whether nothing of it is taken and all of it can be."""
        return not self.usage.slots and self.serves

    @property
    def serves(self) -> bool:
        """Tells whether any pod may get it."""
        return self.device.healthy and not self.cordoned

    @property
    def free_memory_mib(self) -> int:
        return unused.free_memory_mib(self.usage)

    @property
    def state(self) -> str:
        """One word for why no pod may get it, or `` if pods may."""
        return "" if self.serves else "unhealthy" if not self.device.healthy else "cordoned"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNode:
    """One node. `problem` says why none of its GPUs can be given out; then `gpus` is empty. `undecided` pods hold GPUs
    of it without a decision.
    """

    name: str
    gpus: tuple[Gpu, ...] = ()
    usage: NodeUsage | None = None
    undecided: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The cluster. `nodes` are those that have or should have GPUs, by name; `pods` all pods by `namespace/name`."""

    nodes: tuple[GpuNode, ...]
    pods: Mapping[str, Pod]
    ledger: Ledger
    settings: RequestSettings
    problems: Mapping[str, str] = field(default_factory=dict)
    """Errors of nodes, pods and quotas that could not be read, by `kind name`."""

    def node(self, name: str) -> GpuNode | None:
        return next((node for node in self.nodes if node.name == name), None)

    def snapshot(self, without: Pod | None = None) -> Snapshot:
        """Returns the state on which decisions are taken, without the pod's own GPUs."""
        return self.ledger.snapshot("" if without is None else pod_key(without))

    @property
    def holders(self) -> Mapping[str, tuple[Holder, ...]]:
        """The pods that hold GPUs, by node. Computed at each call."""
        return {
            node.name: tuple(
                _holder(self.pods[name]) for name in {held.pod for gpu in node.gpus for held in gpu.holders}
            )
            for node in self.nodes
        }


def read_cluster(objects: Objects, settings: RequestSettings) -> Cluster:
    """Builds the cluster as the extender would after a start."""
    ledger = Ledger(settings)
    ledger.replace_nodes(objects.nodes)
    ledger.replace_pods(objects.pods)
    ledger.replace_quotas(objects.quotas)
    snapshot, holdings = ledger.snapshot(), ledger.holdings()
    pods = {pod_name(pod): pod for pod in objects.pods}
    held = _held(holdings, {pod_key(pod): pod for pod in objects.pods})
    nodes = [_gpu_node(name, usage, held) for name, usage in snapshot.nodes.items()]
    nodes += [
        GpuNode(name=name, problem=reason.partition(": ")[2])
        for name, reason in snapshot.unregistered.items()
        if ": " in reason
    ]
    named = {f"pod {pod_key(pod)}": f"pod {pod_name(pod)}" for pod in objects.pods}
    return Cluster(
        nodes=tuple(sorted(nodes, key=lambda node: node.name)),
        pods=pods,
        ledger=ledger,
        settings=settings,
        problems={named.get(subject, subject): problem for subject, problem in ledger.problems().items()},
    )


def _holder(pod: Pod) -> Holder:
    return Holder(
        uid=pod_key(pod),
        priority=pod.spec.priority or 0,
        created=pod.metadata.creation_timestamp or "",
        name=pod.metadata.name,
        namespace=pod.metadata.namespace or "default",
        leaving=pod.metadata.deletion_timestamp is not None,
    )


def pod_name(pod: Pod) -> str:
    """`namespace/name`."""
    return f"{pod.metadata.namespace or 'default'}/{pod.metadata.name}"


def _gpu_node(name: str, usage: NodeUsage, held: Mapping[tuple[str, DeviceUUID], Collection[Held]]) -> GpuNode:
    gpus = tuple(
        Gpu(
            usage=gpu,
            cordoned=gpu.device.uuid in usage.node.cordoned,
            holders=tuple(sorted(held.get((name, gpu.device.uuid), ()), key=lambda each: each.pod)),
        )
        for gpu in sorted(usage.gpus, key=lambda gpu: gpu.device.index)
    )
    return GpuNode(name=name, gpus=gpus, usage=usage, undecided=usage.undecided)


def _held(
    holdings: Mapping[str, Holding], pods: Mapping[str, Pod]
) -> Mapping[tuple[str, DeviceUUID], Collection[Held]]:
    """Returns the holders by node and GPU."""
    found: dict[tuple[str, DeviceUUID], list[Held]] = {}
    for uid, holding in holdings.items():
        pod = pods[uid]
        for uuid, part in holding.footprints.items():
            each = Held(
                pod=pod_name(pod),
                phase=phase(pod),
                slots=part.slots,
                memory_mib=part.memory_mib,
                cores=part.cores,
            )
            found.setdefault((holding.node, uuid), []).append(each)
    return found


def phase(pod: Pod) -> str:
    """Returns the phase as `kubectl get pods` shows it: `Terminating` while the pod is being deleted."""
    if pod.metadata.deletion_timestamp is not None and not pod.has_ended:
        return "Terminating"
    return pod.status.phase or "Unknown"


def gpus_named(cluster: Cluster, text: str) -> Iterable[tuple[GpuNode, Gpu]]:
    """Returns the GPUs named by `node/index`, a UUID, or the beginning of one."""
    node_name, _, index = text.rpartition("/")
    for node in cluster.nodes:
        for gpu in node.gpus:
            begins = not node_name and len(text) > len("GPU-") and gpu.device.uuid.startswith(text)
            if begins or (node.name, str(gpu.device.index)) == (node_name, index):
                yield node, gpu
