"""The outcome of a demo run: plain values for the report and for `--json`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from proto.annotations.keys import NODE_REGISTER, NODE_SCORE, RESOURCE_MEMORY
from proto.annotations.node_register import decode_register, decode_scores
from proto.devices import Device, PairScores
from proto.environment import VISIBLE_DEVICES
from proto.kubernetes.objects import UNSCHEDULABLE, Node, Pod
from proto.quantity import integer_quantity
from simulation.choice import explain_choice
from simulation.kubelet.container import CreatedContainer
from simulation.verification import (
    capacity_violations,
    container_violations,
    granted_shares,
    total_load,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOutcome:
    """A simulated machine as its daemon published it; `links` is the `topo` matrix in index order."""

    name: str
    machine: str
    title: str
    annotations: Mapping[str, str]
    devices: tuple[Device, ...]
    scores: PairScores
    links: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuGrant:
    """The part of one GPU that a container may use."""

    index: int
    uuid: str
    memory_mib: int
    cores: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerOutcome:
    """One created container."""

    name: str
    phase: str
    gpus: tuple[GpuGrant, ...]
    env: Mapping[str, str]
    device_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOutcome:
    """The place where a pod went, what it got; `reason` explains one that is Pending or Failed."""

    name: str
    why: str
    phase: str
    node: str
    choice: str
    """The reason why these GPUs."""
    containers: tuple[ContainerOutcome, ...]
    annotations: Mapping[str, str]
    reason: str
    refusals: Mapping[str, str]
    """The extender's reason for each node it refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOutcome:
    """All of it; without violations the run is good."""

    nodes: tuple[NodeOutcome, ...]
    pods: tuple[PodOutcome, ...]
    violations: tuple[str, ...]
    seconds: float
    kept_directory: str = ""


def node_outcome(node: Node, machine: str, title: str, links: Sequence[Sequence[str]]) -> NodeOutcome:
    """Raises AnnotationError when the daemon's annotations cannot be read."""
    annotations = node.metadata.annotations
    return NodeOutcome(
        name=node.metadata.name,
        machine=machine,
        title=title,
        annotations={key: value for key, value in sorted(annotations.items()) if "/" in key},
        devices=decode_register(annotations[NODE_REGISTER]),
        scores=decode_scores(annotations.get(NODE_SCORE, "[]")),
        links=tuple(tuple(row) for row in links),
    )


def devices_by_uuid(nodes: Sequence[NodeOutcome]) -> dict[str, Device]:
    return {device.uuid: device for node in nodes for device in node.devices}


def pod_outcome(
    pod: Pod,
    why: str,
    created: Sequence[CreatedContainer],
    nodes: Sequence[NodeOutcome],
    refusals: Mapping[str, str],
) -> PodOutcome:
    """`refusals` is the extender's sentence by node, for a pod that does not run."""
    annotations = pod.metadata.annotations
    devices = devices_by_uuid(nodes)
    containers = tuple(_container(one, devices) for one in created)
    home = next((node for node in nodes if node.name == pod.spec.node_name), None)
    groups = [tuple(gpu.index for gpu in container.gpus) for container in containers]
    running = pod.is_running
    return PodOutcome(
        name=pod.metadata.name,
        why=why,
        phase=pod.status.phase or "Pending",
        node=pod.spec.node_name,
        choice=explain_choice(annotations, groups, home.links) if home else "",
        containers=containers,
        annotations={key: value for key, value in sorted(annotations.items()) if "/" in key},
        reason="" if running else pending_reason(pod),
        refusals={node.name: _refusal(pod, node, refusals[node.name]) for node in nodes if node.name in refusals},
    )


def _refusal(pod: Pod, node: NodeOutcome, reason: str) -> str:
    """Returns the extender's sentence; where memory is short, what was wanted and what there is at most."""
    asked = [integer_quantity(container.resources.limits.get(RESOURCE_MEMORY, 0)) for container in pod.all_containers]
    if "CardInsufficientMemory" not in reason or not any(asked) or not node.devices:
        return reason
    largest = max(device.memory_mib for device in node.devices)
    return f"{reason} (needs {max(asked)} MiB; largest GPU of the node has {largest})"


def pending_reason(pod: Pod) -> str:
    """Returns the reason in the pod's status for which it does not run."""
    if pod.status.message:
        return pod.status.message
    if pod.status.unscheduled is not None:
        return pod.status.unscheduled.message or pod.status.unscheduled.reason
    for status in pod.all_statuses:
        if status.state.waiting and status.state.waiting.get("message"):
            return f"container {status.name}: {status.state.waiting['message']}"
    return "no reason given"


def is_unschedulable(pod: Pod) -> bool:
    return pod.status.unscheduled is not None and pod.status.unscheduled.reason == UNSCHEDULABLE


def violations(
    pods: Sequence[Pod],
    created: Mapping[str, Sequence[CreatedContainer]],
    devices: Mapping[str, Device],
    must_run: frozenset[str],
) -> list[str]:
    """Every way in which the final state differs from what was decided or what there is."""
    problems = capacity_violations(total_load(pods), devices)
    for pod in pods:
        if pod.is_running:
            problems += container_violations(pod, created.get(pod.metadata.uid, ()))
        elif pod.has_failed:
            problems.append(f"pod {pod.metadata.name} failed: {pending_reason(pod)}")
        elif pod.metadata.name in must_run:
            problems.append(f"pod {pod.metadata.name} should run and is Pending: {pending_reason(pod)}")
        elif not is_unschedulable(pod):
            problems.append(f"pod {pod.metadata.name} is Pending without a scheduler's reason: {pending_reason(pod)}")
    return problems


def container_gpus(container: CreatedContainer, devices: Mapping[str, Device]) -> tuple[GpuGrant, ...]:
    """The GPUs in the order the container sees them; none where its environment cannot be read."""
    try:
        shares = granted_shares(container)
    except ValueError:
        return ()
    return tuple(
        GpuGrant(
            index=devices[share.uuid].index if share.uuid in devices else -1,
            uuid=share.uuid,
            memory_mib=share.memory_mib,
            cores=share.cores,
        )
        for share in shares
    )


def _container(container: CreatedContainer, devices: Mapping[str, Device]) -> ContainerOutcome:
    shown = (VISIBLE_DEVICES, "CUDA_", "GPU_", "NVIDIA_")
    return ContainerOutcome(
        name=container.name,
        phase=container.phase,
        gpus=container_gpus(container, devices),
        env={key: value for key, value in container.env.items() if key.startswith(shown)},
        device_ids=container.device_ids,
    )
