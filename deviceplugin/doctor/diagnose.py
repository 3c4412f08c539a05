"""Turns all facts into all findings, in the order in which a node is set up: its GPUs, kubelet, its containers, the
cluster.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from deviceplugin.configuration.table import Configuration
from deviceplugin.container.limits import Backends, limits_of
from deviceplugin.doctor.annotations import (
    ANNOTATIONS,
    HANDSHAKE,
    LABELS,
    LOCK,
    judge_annotations,
    judge_handshake,
    judge_labels,
    judge_lock,
    judge_without_labels,
    published_mode,
)
from deviceplugin.doctor.cluster import ClusterFacts, judge_api, judge_node, judge_rights
from deviceplugin.doctor.containers import (
    ALLOCATION,
    CdiFolderFacts,
    judge_allocation,
    judge_cdi,
    judge_cdi_specs,
    judge_limits,
)
from deviceplugin.doctor.driver import (
    GPUS,
    DriverAnswer,
    DriverFilesFacts,
    judge_driver,
    judge_driver_files,
    judge_gpus,
)
from deviceplugin.doctor.finding import Finding, skipped
from deviceplugin.doctor.kubelet import (
    COUNT,
    SocketFacts,
    SocketState,
    is_other_plugin,
    judge_count,
    judge_kubelet_socket,
    judge_owner,
    judge_pod_resources,
)
from deviceplugin.doctor.nvidia_runtime import RuntimeFacts, judge_runtime
from deviceplugin.machine.discovery import resources
from deviceplugin.machine.features import feature_labels
from deviceplugin.machine.readings import MachineReading
from deviceplugin.machine.topology import build_topology, pair_scores
from deviceplugin.mode.rules import NodeAbilities
from deviceplugin.node.registration import Offer
from deviceplugin.runtimes import Runtime
from proto.annotations.keys import NODE_ALLOCATION, NODE_LOCK
from proto.annotations.node_allocation import AllocationMode
from proto.devices import Device
from proto.kubernetes.objects import Node, NodeInfo

_NO_NODE = "The Node could not be read."
_NO_GPUS = "The GPUs could not be read."


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """The facts about this machine."""

    driver: DriverAnswer
    driver_files: DriverFilesFacts | None
    """None if no driver root is set."""
    machine: MachineReading | None
    """None if the driver cannot be used."""
    kubelet: SocketFacts
    pod_resources: SocketFacts
    plugin: SocketFacts
    """Our own socket."""
    other_sockets: tuple[str, ...]
    """Sockets of other GPU device plugins in the same folder."""
    backends: Backends
    enable_cdi: bool | None
    """The answer of the container runtime, if it can be reached."""
    nvidia_runtime: RuntimeFacts
    cdi: CdiFolderFacts
    slots_problem: str
    """The reason why the CDI spec of the slots cannot be written, as the end of a sentence; empty if it can."""


def diagnose(
    configuration: Configuration, seen: NodeFacts, cluster: ClusterFacts, *, now: datetime
) -> tuple[Finding, ...]:
    """Returns all findings."""
    return (
        judge_driver(seen.driver),
        *([judge_driver_files(seen.driver_files, seen.driver.answered_version)] if seen.driver_files else []),
        *_gpus(configuration, seen),
        *_kubelet(configuration, seen, cluster),
        *_containers(configuration, seen, cluster.node),
        *_cluster(configuration, cluster),
        *_annotations(configuration, seen, cluster, now),
        _labels(configuration, seen, cluster.node),
        _allocation(configuration, seen, cluster.node),
    )


def _gpus(configuration: Configuration, seen: NodeFacts) -> tuple[Finding, ...]:
    if seen.machine is None:
        return (skipped(GPUS, "They cannot be read without a driver."),)
    return judge_gpus(seen.machine, configuration.sharing, configuration.kubelet.resource_name)


def _kubelet(configuration: Configuration, seen: NodeFacts, cluster: ClusterFacts) -> Iterator[Finding]:
    resource = configuration.kubelet.resource_name
    yield judge_kubelet_socket(seen.kubelet)
    yield judge_pod_resources(seen.pod_resources, _mode(cluster.node))
    others = sorted(pod.full_name for pod in cluster.pods if is_other_plugin(pod))
    yield judge_owner(resource, seen.plugin, seen.other_sockets, others, cluster.node)
    if cluster.node is None:
        yield skipped(COUNT, _NO_NODE)
    elif seen.machine is None:
        yield skipped(COUNT, _NO_GPUS)
    else:
        yield judge_count(cluster.node, resources(seen.machine, configuration.sharing, resource), seen.plugin)


def _containers(configuration: Configuration, seen: NodeFacts, node: Node | None) -> Iterator[Finding]:
    strategies = configuration.containers.strategies
    info = node.status.node_info if node is not None else NodeInfo()
    versions = Runtime(kubelet=info.kubelet_version, runtime=info.container_runtime_version, enable_cdi=seen.enable_cdi)
    agent = configuration.agent
    yield judge_limits(seen.backends, agent.limits, agent.allows_unheld, configuration.sharing.split_count)
    yield judge_cdi(versions, strategies, _mode(node))
    yield judge_cdi_specs(seen.cdi, strategies)
    yield judge_runtime(seen.nvidia_runtime, strategies)


def _labels(configuration: Configuration, seen: NodeFacts, node: Node | None) -> Finding:
    if node is None:
        return skipped(LABELS, _NO_NODE)
    if not configuration.agent.feature_labels:
        return judge_without_labels(node)
    if seen.machine is None:
        return skipped(LABELS, _NO_GPUS)
    return judge_labels(
        node,
        feature_labels(seen.machine, configuration.sharing),
        daemon_serves=seen.plugin.state is SocketState.CONNECTS,
    )


def _shared(configuration: Configuration, seen: NodeFacts) -> Sequence[Device]:
    """Returns the GPUs that pods share; none without a driver."""
    resource = configuration.kubelet.resource_name
    return resources(seen.machine, configuration.sharing, resource)[resource] if seen.machine else ()


def _mode(node: Node | None) -> AllocationMode:
    """Returns the mode that the daemon published."""
    return AllocationMode.IMMEDIATE if node is None else published_mode(node)


def _allocation(configuration: Configuration, seen: NodeFacts, node: Node | None) -> Finding:
    if node is None:
        return skipped(ALLOCATION, _NO_NODE)
    published = published_mode(node) if NODE_ALLOCATION in node.metadata.annotations else None
    abilities = NodeAbilities(
        kubelet=node.status.node_info.kubelet_version,
        runtime=node.status.node_info.container_runtime_version,
        enable_cdi=seen.enable_cdi,
        cdi_problem=seen.slots_problem,
        pod_resources_problem=""
        if seen.pod_resources.state is SocketState.CONNECTS
        else f"{seen.pod_resources.path} {seen.pod_resources.state.value}",
        by_slots=published is AllocationMode.SLOTS,
    )
    agent = configuration.agent
    return judge_allocation(agent.allocation, abilities, agent.hami_scheduler, published)


def _cluster(configuration: Configuration, cluster: ClusterFacts) -> Iterator[Finding]:
    yield judge_api(cluster.refusal, cluster.url)
    yield judge_node(cluster.refusal, configuration.agent.node_name)
    yield judge_rights(cluster.rights)


def _annotations(
    configuration: Configuration, seen: NodeFacts, cluster: ClusterFacts, now: datetime
) -> Iterator[Finding]:
    node, scheduler = cluster.node, configuration.agent.hami_scheduler
    if node is None:
        yield from (skipped(title, _NO_NODE) for title in (ANNOTATIONS, LOCK, HANDSHAKE))
        return
    devices = _shared(configuration, seen)
    if seen.machine is None or not devices:
        yield skipped(ANNOTATIONS, _NO_GPUS)
    else:
        yield judge_annotations(
            node,
            Offer(
                devices=devices,
                scores=pair_scores(build_topology(seen.machine), [device.uuid for device in devices]),
                mode=published_mode(node),
                limits=limits_of(seen.backends, configuration.agent.limits, configuration.agent.allows_unheld),
                simulated=seen.machine.is_simulated,
            ),
            scheduler=scheduler,
            daemon_serves=seen.plugin.state is SocketState.CONNECTS,
            now=now,
        )
    yield judge_lock(node.metadata.annotations.get(NODE_LOCK), cluster.holder, configuration.agent.node_name, now)
    yield judge_handshake(node, scheduler, now)
