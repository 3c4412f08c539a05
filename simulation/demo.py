"""The demo: machines without GPUs, the real daemons and the real extender, and pods from GPU to container."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import aiohttp

from deviceplugin.machine.topology import Topology, build_topology, pair_scores
from program.words import counted
from proto.annotations.errors import AnnotationError
from proto.kubernetes.objects import PODS, Pod, PodGroup, Resource
from simulation.cluster import (
    READY_SECONDS,
    ClusterSettings,
    SimulatedCluster,
    SimulatedNode,
    SimulationFailed,
    machine_kinds,
    simulated_cluster,
)
from simulation.kubelet.container import CreatedContainer
from simulation.machines.described import describe_reading
from simulation.outcome import (
    DemoOutcome,
    NodeOutcome,
    PodOutcome,
    devices_by_uuid,
    is_unschedulable,
    node_outcome,
    pod_outcome,
    violations,
)
from simulation.scheduling_queue import passed_nodes
from simulation.verification import score_violations
from simulation.watching import ClusterView
from simulation.workload import (
    GROUPS,
    MACHINES,
    NAMESPACE,
    SHAPES,
    TRAYS,
    GroupShape,
    Shape,
    group_object,
    members,
    pod_object,
    workload,
)

_QUIET_SECONDS = 2.0
_SECONDS_PER_POD = 2.0
_SECONDS_BETWEEN_LINES = 2.0
_MOST_EXPLAINED = 50
"""The number of waiting pods for which the extender is called again, node by node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """`nodes` cycles through the machines, `pods` through the shapes; port 0 takes any free one."""

    machines: tuple[str, ...] = ()
    """Empty for MACHINES."""
    nodes: int | None = None
    pods: int = len(SHAPES)
    api_port: int = 0
    keep: bool = False


async def run_demo(settings: DemoSettings, progress: Callable[[str], None], now: Callable[[], datetime]) -> DemoOutcome:
    """Stops and removes everything before it returns or raises. Raises SimulationFailed."""
    started = time.monotonic()
    as_it_is = not settings.machines and settings.nodes is None
    groups = GROUPS if as_it_is else ()
    placed = machine_kinds((*MACHINES, *TRAYS) if as_it_is else settings.machines, settings.nodes)
    simulated = ClusterSettings(
        machines=tuple(each.kind for each in placed),
        labels=tuple(each.labels for each in placed),
        api_port=settings.api_port,
        keep=settings.keep,
        daemon_options=("--features", "gpu-labels") if groups else (),
    )
    async with simulated_cluster(simulated, progress, now) as cluster:
        together, alone = members(groups), workload(settings.pods)
        pods = (*alone, *together)
        progress(f"{counted(len(pods), 'pod')} for {counted(len(cluster.nodes), 'node')}")
        await _create(cluster.server.url, groups, (*together, *alone))
        await _wait_for_pods(cluster, dict(pods))
        refusals = await _refusals(cluster)
        return _outcome(cluster, dict(pods), refusals, time.monotonic() - started)


async def _create(url: str, groups: Sequence[GroupShape], pods: Sequence[tuple[str, Shape]]) -> None:
    path = Resource("scheduling.k8s.io/v1beta1", "podgroups", True, PodGroup).path(NAMESPACE)
    made = [(path, group_object(group)) for group in groups]
    made += [(PODS.path(NAMESPACE), pod_object(name, shape)) for name, shape in pods]
    async with aiohttp.ClientSession() as session:
        for where, body in made:
            async with session.post(url + where, json=body) as answer:
                if answer.status >= 400:
                    raise SimulationFailed(f"the API server refused {body['kind']}: {await answer.text()}")


async def _wait_for_pods(cluster: SimulatedCluster, pods: Mapping[str, Shape]) -> None:
    """Until every pod runs, has failed or is unschedulable; those that should run get a little longer."""
    limit_seconds, view = 15.0 + _SECONDS_PER_POD * len(pods), cluster.view
    told = time.monotonic()

    def undecided() -> list[str]:
        seen = {name: view.pods.get(name) for name in pods}
        return [
            name
            for name, pod in seen.items()
            if pod is None or not (pod.status.phase in ("Running", "Failed") or is_unschedulable(pod))
        ]

    def check() -> None:
        nonlocal told
        cluster.check()
        if time.monotonic() - told >= _SECONDS_BETWEEN_LINES:
            told = time.monotonic()
            cluster.progress(f"{len(pods) - len(undecided())} of {len(pods)} pods decided, {_running(view)} running")

    decided = await view.wait_until(lambda: not undecided(), check, limit_seconds)
    some_wait = decided and any(is_unschedulable(view.pods[name]) and pods[name].fits for name in pods)
    if some_wait and not await view.wait_for_quiet(_QUIET_SECONDS, limit_seconds):
        raise SimulationFailed(
            f"pods and nodes were still changing after {limit_seconds:g} s; run it with --keep and read the logs"
        )
    running = _running(view)
    cluster.progress(f"{counted(running, 'pod')} running, {len(pods) - running} not")


def _running(view: ClusterView) -> int:
    return sum(pod.is_running for pod in view.pods.values())


async def _refusals(cluster: SimulatedCluster) -> dict[str, dict[str, str]]:
    """Returns the extender's FailedNodes for the pods that wait, by pod and node, as kube-scheduler would get them."""
    url, pods = cluster.server.url, cluster.view.pods
    waiting = [name for name, pod in pods.items() if is_unschedulable(pod)][:_MOST_EXPLAINED]
    names = [node.name for node in cluster.nodes]
    refusals = {}
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=READY_SECONDS)) as session:
            for name in waiting:
                async with session.get(f"{url}{PODS.path(NAMESPACE)}/{name}") as answer:
                    asked = {"Pod": await answer.json(), "Nodes": None, "NodeNames": names}
                async with session.post(f"{cluster.extender}/filter", json=asked) as answer:
                    refusals[name] = passed_nodes(await answer.json(content_type=None), names)[1]
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise SimulationFailed(f"the extender gave no reason {name} waits: {error or 'no answer in time'}") from error
    return refusals


def _outcome(
    cluster: SimulatedCluster,
    pods: Mapping[str, Shape],
    refusals: Mapping[str, Mapping[str, str]],
    seconds: float,
) -> DemoOutcome:
    view = cluster.view
    published = [node for node in cluster.nodes if node.daemon is not None]
    try:
        nodes = tuple(_node_outcome(view, node) for node in published)
    except AnnotationError as error:
        raise SimulationFailed(f"a node's annotation cannot be read: {error}") from error
    devices = devices_by_uuid(nodes)
    created: dict[str, list[CreatedContainer]] = {}
    for node in cluster.nodes:
        created |= node.kubelet.created
    seen = [view.pods[name] for name in pods if name in view.pods]
    problems = [*view.overbooked, *violations(seen, created, devices, _must_run(cluster.settings.machines, pods))]
    problems += _split_groups(view, seen)
    for node, outcome in zip(published, nodes, strict=True):
        problems += score_violations(node.name, outcome.scores, pair_scores(_topology(node)))
    return DemoOutcome(
        nodes=nodes,
        pods=tuple(_pod_outcome(pod, pods, created, nodes, refusals) for pod in seen),
        violations=tuple(dict.fromkeys(problems)),
        seconds=round(seconds, 1),
        kept_directory=str(cluster.directory) if cluster.settings.keep else "",
    )


def _split_groups(view: ClusterView, pods: Sequence[Pod]) -> Iterator[str]:
    """Yields a sentence for each group that is bound in part, or in several domains."""
    for group in GROUPS:
        name = group.member.name
        known = ((pod.spec.node_name, pod.spec.scheduling_group) for pod in pods)
        nodes = {node for node, its in known if its is not None and its.pod_group_name == name}
        if "" in nodes:
            yield f"not all pods of group {name} have a node"
        elif group.domain and len({view.nodes[node].metadata.labels.get(group.domain) for node in nodes}) > 1:
            yield f"the pods of group {name} are in several domains"


def _node_outcome(view: ClusterView, node: SimulatedNode) -> NodeOutcome:
    return node_outcome(view.nodes[node.name], node.machine.id, node.machine.title, _topology(node).links)


def _topology(node: SimulatedNode) -> Topology:
    return build_topology(describe_reading(node.machine, node.name))


def _pod_outcome(
    pod: Pod,
    shapes: Mapping[str, Shape],
    created: Mapping[str, Sequence[CreatedContainer]],
    nodes: Sequence[NodeOutcome],
    refusals: Mapping[str, Mapping[str, str]],
) -> PodOutcome:
    name = pod.metadata.name
    return pod_outcome(pod, shapes[name].why, created.get(pod.metadata.uid, ()), nodes, refusals.get(name, {}))


def _must_run(kinds: Sequence[str], pods: Mapping[str, Shape]) -> frozenset[str]:
    """With one round of pods or less for every four machines there is room for all that fit at all."""
    rounds = -(-sum(not shape.group for shape in pods.values()) // len(SHAPES))
    if min(kinds.count(kind) for kind in MACHINES) < rounds:
        return frozenset()
    return frozenset(name for name, shape in pods.items() if shape.fits)
