"""Clusters that were recorded: `kubectl get … -o json`, or the extender's answer to /debug/snapshot."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from msgspec import structs

from proto.annotations import keys
from proto.annotations.mig_allocations import encode_mig_allocations, mig_allocations
from proto.annotations.node_allocation import AllocationMode
from proto.annotations.node_register import encode_cordon, encode_register, encode_scores
from proto.annotations.pod_devices import encode_pod_devices
from proto.devices import DeviceShare, MigInstance, PodShares
from proto.kubernetes.objects import (
    POD_GROUPS,
    Container,
    Node,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodGroup,
    PodSpec,
    PodStatus,
    ResourceQuota,
    ResourceQuotaSpec,
    Resources,
    ScopedResourceSelectorRequirement,
    ScopeSelector,
)
from proto.kubernetes.requests import HostAmount
from scheduler_ext.cli.state import StateError, listed, read_snapshot, typed
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage, Quota, Snapshot
from scheduler_ext.domains.levels import Domains
from scheduler_ext.requests import RequestSettings, ResourceNames, pod_key
from simulation.plan.objects import Arrival, Described, WholePod, arrival_of, left_out

MOST_NOTES = 10
MOST_SLOTS = 100_000
"""The GPUs of one node in use: its stand-in has a container for each."""
_SOME_PROFILE = "1g"
"""A snapshot has the places of MIG instances, and not their names."""


def read_objects(document: object, where: str, settings: RequestSettings) -> tuple[Described, list[Arrival]]:
    """Returns the cluster of a list of objects, and its pods that wait. Raises StateError."""
    nodes: list[Node] = []
    pods: list[WholePod] = []
    quotas: list[ResourceQuota] = []
    groups: list[PodGroup] = []
    seen = set[tuple[str, str]]()
    for kind, item, place in listed(document, where):
        if kind == "Node":
            node = typed(item, Node, place)
            nodes.append(node)
            _check_first(seen, kind, node.metadata.name, place)
        elif kind == "Pod":
            pod = typed(item, WholePod, place)
            pods.append(pod)
            _check_first(seen, kind, pod_key(pod), place)
        elif kind == "ResourceQuota":
            quotas.append(typed(item, ResourceQuota, place))
        elif kind == "PodGroup":
            groups += groups_in([item], place)
    held = tuple(pod for pod in pods if pod.spec.node_name and not pod.has_ended)
    waiting = [
        pod
        for pod in pods
        if not (pod.spec.node_name or pod.has_ended or pod.spec.scheduling_gates or pod.metadata.deletion_timestamp)
    ]
    cluster = Described(nodes=tuple(nodes), held=held, quotas=tuple(quotas), groups=tuple(groups))
    notes = (*_problems(cluster, settings), *notes_on(waiting))
    return replace(cluster, notes=notes), [arrival_of(pod) for pod in sorted(waiting, key=_age)]


def groups_in(documents: Iterable[object], where: str) -> list[PodGroup]:
    """Returns the groups among these objects and in lists of them. Raises StateError."""
    found = []
    for document in documents:
        if not isinstance(document, dict):
            continue
        if isinstance(document.get("items"), list):
            found += groups_in(document["items"], where)
        elif document.get("kind") == "PodGroup":
            version = document.get("apiVersion")
            kind = next((each.type for each in POD_GROUPS if each.group_version == version), None)
            if kind is None:
                known = ", ".join(each.group_version for each in POD_GROUPS)
                raise StateError(f"{where}: PodGroup of {version!r} is not known; known are {known}")
            group = typed(document, kind, where)
            namespace = group.metadata.namespace or "default"
            found.append(structs.replace(group, metadata=structs.replace(group.metadata, namespace=namespace)))
    return found


def _check_first(seen: set[tuple[str, str]], kind: str, name: str, place: str) -> None:
    """Raises StateError for an object that was listed before: it would count twice."""
    if (kind, name) in seen:
        raise StateError(f"{place}: {kind} {name!r} is listed twice")
    seen.add((kind, name))


def _age(pod: WholePod) -> tuple[int, str, str]:
    """Sorts pods as kube-scheduler takes them: the most important first, then the oldest."""
    return -(pod.spec.priority or 0), pod.metadata.creation_timestamp or "", pod.metadata.name


def _problems(cluster: Described, settings: RequestSettings) -> Sequence[str]:
    ledger = Ledger(settings)
    ledger.replace_nodes(cluster.nodes)
    ledger.replace_pods(cluster.held)
    ledger.quotas.replace(cluster.quotas)
    return [f"{subject}: {problem}" for subject, problem in ledger.problems().items()][:MOST_NOTES]


def notes_on(pods: Iterable[WholePod]) -> Sequence[str]:
    """Names what a plan leaves out of what these pods request."""
    found: dict[str, list[str]] = {}
    for pod in pods:
        if wishes := left_out(pod):
            found.setdefault(wishes, []).append(pod.metadata.name)
    return [f"not considered: {wishes} of {len(names)} pods, such as {names[0]}" for wishes, names in found.items()]


def drain(cluster: Described, names: Sequence[str]) -> tuple[Described, list[Arrival]]:
    """Returns the cluster without these nodes, and their pods, which need another node. Raises StateError.

    Pods of DaemonSets, and those that the node itself made, are gone with the node.
    """
    known = {node.metadata.name for node in cluster.nodes}
    for name in names:
        if name not in known:
            raise StateError(f"--drain {name}: the cluster has no such node")
    leaving = [pod for pod in cluster.held if pod.spec.node_name in names]
    if any(pod.metadata.uid.startswith(_STAND_IN) for pod in leaving):
        raise StateError("--drain: a snapshot does not name pods; give --state with the output of kubectl")
    moved = [pod for pod in leaving if not (isinstance(pod, WholePod) and pod.stays_with_its_node)]
    rest = replace(
        cluster,
        nodes=tuple(node for node in cluster.nodes if node.metadata.name not in names),
        held=tuple(pod for pod in cluster.held if pod.spec.node_name not in names),
        notes=(*cluster.notes, *notes_on(pod for pod in moved if isinstance(pod, WholePod))),
    )
    return rest, [arrival_of(pod, came_from=pod.spec.node_name) for pod in moved]


# A snapshot has sums in place of pods: a stand-in on each node holds what its pods hold.

_STAND_IN = "pods-of-"


def from_snapshot(document: object, where: str, settings: RequestSettings) -> Described:
    """Raises StateError."""
    snapshot = read_snapshot(document, where)
    for usage in snapshot.nodes.values():
        if sum(gpu.replicas for gpu in usage.gpus) > MOST_SLOTS:
            raise StateError(f"{where}: node {usage.node.name!r} has more than {MOST_SLOTS} containers with GPUs")
    unregistered = [Node(metadata=ObjectMeta(name=name)) for name in snapshot.unregistered]
    nodes = [_node(usage, snapshot.hosts.get(name)) for name, usage in snapshot.nodes.items()]
    held = [
        _stand_in(usage, settings.names) for usage in snapshot.nodes.values() if any(gpu.replicas for gpu in usage.gpus)
    ]
    quotas = [
        _quota(namespace, number, quota, settings)
        for namespace, several in snapshot.quotas.items()
        for number, quota in enumerate(several)
    ]
    notes = _undecided(snapshot)
    return Described(nodes=(*nodes, *unregistered), held=tuple(held), quotas=tuple(quotas), notes=notes)


def _undecided(snapshot: Snapshot) -> tuple[str, ...]:
    nodes = [name for name, usage in snapshot.nodes.items() if usage.undecided]
    if not nodes:
        return ()
    return (f"pods without a decision hold GPUs of {len(nodes)} nodes, such as {nodes[0]}",)


def _node(usage: NodeUsage, left: HostAmount | None) -> Node:
    node = usage.node
    annotations = {
        keys.NODE_REGISTER: encode_register(node.devices),
        keys.NODE_SCORE: encode_scores(node.pair_scores, [device.uuid for device in node.devices]),
        keys.NODE_ALLOCATION: (AllocationMode.SLOTS if node.by_slots else AllocationMode.IMMEDIATE).value,
        keys.NODE_LIMITS: node.limits.value,
        keys.DEVICE_CORDON: encode_cordon(node.cordoned),
    }
    allocatable: dict[str, str | int | float] = {keys.RESOURCE_COUNT: sum(device.replicas for device in node.devices)}
    if left is not None:
        allocatable |= {"cpu": f"{max(left.cpu_milli, 0)}m", "memory": f"{max(left.memory_mib, 0)}Mi"}
    return Node(
        metadata=ObjectMeta(name=node.name, annotations=annotations, labels=labels_of(node.domains)),
        status=NodeStatus(allocatable=allocatable),
    )


def _stand_in(usage: NodeUsage, names: ResourceNames) -> Pod:
    """Returns a pod with a container for each used slot."""
    shares: PodShares = tuple((share,) for gpu in usage.gpus for share in _shares(gpu))
    limits = Resources(limits={names.count: 1})
    annotations = {keys.DEVICES_ALLOCATED: encode_pod_devices(shares)}
    if instances := mig_allocations(shares):
        annotations[keys.MIG_ALLOCATIONS] = encode_mig_allocations(instances)
    name = f"{_STAND_IN}{usage.node.name}"
    return Pod(
        metadata=ObjectMeta(name=name, namespace=_STAND_IN, uid=name, annotations=annotations),
        spec=PodSpec(
            node_name=usage.node.name,
            containers=[Container(name=f"c{number}", resources=limits) for number in range(len(shares))],
        ),
        status=PodStatus(phase="Pending"),
    )


def _shares(gpu: GpuUsage) -> Iterable[DeviceShare]:
    """The first holds all memory and cores."""
    uuid, places = gpu.device.uuid, gpu.placements
    for slot in range(gpu.replicas):
        instance = MigInstance(profile=_SOME_PROFILE, placement=places[slot]) if slot < len(places) else None
        amounts = (gpu.memory_mib, gpu.cores) if slot == 0 else (0, 0)
        yield DeviceShare(uuid=uuid, memory_mib=amounts[0], cores=amounts[1], instance=instance)


def _quota(namespace: str, number: int, quota: Quota, settings: RequestSettings) -> ResourceQuota:
    """Returns what the quota leaves."""
    used, names = quota.used, settings.names
    memory_mib = None if quota.memory_mib is None else quota.memory_mib - used.memory_mib
    left = {
        names.count: None if quota.gpus is None else quota.gpus - used.replicas,
        names.memory: None if memory_mib is None else memory_mib // settings.memory_factor,
        names.cores: None if quota.cores is None else quota.cores - used.cores,
    }
    rules = [
        ScopedResourceSelectorRequirement(scope_name=scope.name, operator=scope.operator, values=list(scope.values))
        for scope in quota.scopes
    ]
    return ResourceQuota(
        metadata=ObjectMeta(name=f"quota-{number}", namespace=namespace),
        spec=ResourceQuotaSpec(
            hard={f"limits.{name}": max(amount, 0) for name, amount in left.items() if amount is not None},
            scope_selector=ScopeSelector(match_expressions=rules) if rules else None,
        ),
    )


def labels_of(domains: Domains) -> dict[str, str]:
    """Returns the labels of a node in these domains: a label's value has no slash."""
    return {level: name.rpartition("/")[2] for level, name in domains.items()}
