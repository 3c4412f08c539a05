"""Explains to people where a pod is and why, or what it waits for."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from program.words import ranges
from proto.annotations.keys import DEVICES_ALLOCATED
from proto.annotations.memory_resize import resize_words
from proto.kubernetes.objects import Pod
from scheduler_ext.capacity.pod_verdict import PodVerdict, judge_pod, node_of, set_aside_for
from scheduler_ext.cluster.gangs import Gang
from scheduler_ext.cluster.history import PodHistory
from scheduler_ext.cluster.snapshot import NodeUsage, Snapshot
from scheduler_ext.decide.explain import NodeLine, explain, named_gpus, popular_sentence
from scheduler_ext.policies import NodePolicy
from scheduler_ext.requests import GpuRequest, RequestSettings

MOST_LINES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """An account of one pod. `nodes` are judged as they are now, without the pod itself."""

    pod: str
    node: str = ""
    devices: str = ""
    sentence: str
    said: str = ""
    """The last decision."""
    said_seconds_ago: float | None = None
    history: tuple[str, ...] = ()
    """The steps of the pod's history, oldest first."""
    nodes: tuple[NodeLine, ...] = ()
    more_nodes: int = 0
    """Nodes that `nodes` does not list."""
    popular: tuple[str, ...] = ()
    """The kinds of pods for which it leaves room; empty unless the node policy is `fgd`."""


def account(
    pod: Pod,
    settings: RequestSettings,
    problem: str,
    snapshot: Snapshot,
    past: PodHistory,
    *,
    now: float,
    gang: Gang | None = None,
) -> Account:
    """Returns an account of the pod.

    `problem` is the reason why no decision is possible, or empty. `past` is the pod's history. `now` is in monotonic
    seconds. A pod of a `gang` waits until all of that fits. Nodes are judged by their GPUs, cordons and taints:
    selectors and CPUs are kube-scheduler's business.
    """
    node, devices = pod.spec.node_name, pod.metadata.annotations.get(DEVICES_ALLOCATED, "")
    answer = judge_pod(pod, settings, snapshot, None if pod.spec.node_name else gang)
    request, lines = answer.request, tuple[NodeLine, ...]()
    if request is not None and answer.decision is not None:
        lines = _with_undecided(explain(request, answer.decision), snapshot)
    usage = node_of(snapshot, node)
    held = _held(devices, usage)
    sentence = _sentence(pod, held, problem, answer) + _unhealthy(pod, devices, usage) + _resize(pod)
    aside = set_aside_for(pod)
    return Account(
        pod=f"{pod.metadata.namespace or 'default'}/{pod.metadata.name}",
        node=node,
        devices=devices,
        sentence=f"{sentence}; {aside}" if aside else sentence,
        said="" if past.decided is None else past.decided.what,
        said_seconds_ago=None if past.decided is None else max(now - past.decided.at, 0.0),
        history=tuple(f"{max(now - at, 0.0):.1f} s ago {what}" for at, what in past.steps),
        nodes=lines[:MOST_LINES],
        more_nodes=max(len(lines) - MOST_LINES, 0),
        popular=_popular(request, snapshot),
    )


def _popular(request: GpuRequest | None, snapshot: Snapshot) -> tuple[str, ...]:
    if request is None or request.policies.node is not NodePolicy.FGD:
        return ()
    return tuple(map(popular_sentence, snapshot.workload.classes))


def _with_undecided(lines: Iterable[NodeLine], snapshot: Snapshot) -> tuple[NodeLine, ...]:
    held = {name: usage.undecided for name, usage in snapshot.nodes.items() if usage.undecided}
    return tuple(replace(line, undecided=held[line.node]) if line.node in held else line for line in lines)


def _unhealthy(pod: Pod, devices: str, usage: NodeUsage | None) -> str:
    """Returns the end of a sentence that names the pod's unhealthy GPUs. Empty if all are healthy or nothing
    is known.
    """
    if usage is None or pod.has_ended:
        return ""
    ill = [gpu.device.index for gpu in usage.gpus if not gpu.device.healthy and gpu.device.uuid in devices]
    return f"; unhealthy: GPU {ranges(ill)}, and events of the node have the reason" if ill else ""


def _resize(pod: Pod) -> str:
    """Returns the end of a sentence about other GPU memory that is wished for the pod. Empty without that."""
    words = "" if pod.has_ended else resize_words(pod.metadata.annotations)
    return f"; {words}" if words else ""


def _held(devices: str, usage: NodeUsage | None) -> str:
    """Returns the GPUs by their names; the annotation itself where the node does not know these GPUs."""
    held = [gpu.device for gpu in usage.gpus if gpu.device.uuid in devices] if usage is not None else []
    return named_gpus(held) if held else devices


def _sentence(pod: Pod, devices: str, problem: str, answer: PodVerdict) -> str:
    node = pod.spec.node_name
    if pod.has_ended:
        return f"has ended ({pod.end}): it holds no GPUs any more"
    if node and (devices or answer.request is not None or problem):
        return f"is on node {node} with {devices}" if devices else f"is on node {node}, without GPUs of ours"
    return f"waits: {problem}" if problem and answer.decision is not None else answer.sentence
