"""The reasons for a placed pod's node and GPUs: what the policy prefers, and the others in the same numbers. No IO."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kubectl_topogpu.cluster import GpuNode, GpuView, phase
from kubectl_topogpu.topo import link
from program.words import ranges, spaced
from proto.kubernetes.objects import Pod
from scheduler_ext.capacity.pod_verdict import node_of
from scheduler_ext.capacity.unused import free_cores, free_memory_mib
from scheduler_ext.cluster.snapshot import NodeUsage, Snapshot, quota_for
from scheduler_ext.decide.decision import Decision
from scheduler_ext.decide.fit import Rules, why_not
from scheduler_ext.decide.misfit import Misfit
from scheduler_ext.decide.place import place
from scheduler_ext.decide.score import connected, node_score
from scheduler_ext.requests import GpuRequest

MOST_NODES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A node on which the pod fits, as it is without the pod. `used_percent` is the mean of replicas, cores and
    memory."""

    node: str
    taken: bool
    used_percent: int
    connection: int | None = None
    """The sum of the pair scores of the GPUs that the pod would get; None if it is not compared."""
    level: int | None = None
    """The score for stranding little, from 0 to 100; None unless the node policy is `fgd`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCandidate:
    """A GPU of the pod's node, as it is without the pod."""

    gpu: int
    taken: bool
    used_percent: int
    free_memory_mib: int
    free_cores_percent: int
    problem: str = ""
    """The reason why the pod could not take it now; empty if it could."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlacement:
    """`why_node` and `why_gpus` are the preferences of the policies. `more_nodes` fit too, `unfit_nodes` do not."""

    why_node: str
    more_nodes: int
    unfit_nodes: int
    why_gpus: str
    gpus: tuple[GpuCandidate, ...]


def placement(
    request: GpuRequest, snapshot: Snapshot, decision: Decision, node: str, held: Sequence[tuple[GpuNode, GpuView]]
) -> PodPlacement:
    """`snapshot` and `decision` are without the pod's own GPUs, which are those `held` on `node`."""
    usage = node_of(snapshot, node)
    taken = {gpu.device.index for _, gpu in held}
    return PodPlacement(
        why_node=_why_node(request, decision),
        more_nodes=max(len(decision.fits) - MOST_NODES, 0),
        unfit_nodes=len(decision.misfits),
        why_gpus=request.policies.why_gpus + ("; the pod asks for GPUs of one NUMA node" if request.numa_bound else ""),
        gpus=() if usage is None else tuple(_gpus(request, snapshot, usage, taken)),
    )


def candidates(decision: Decision, order: Sequence[str], taken: str = "") -> tuple[Candidate, ...]:
    """Returns the first nodes of `order` on which the pod fits."""
    return tuple(_candidate(each, taken, decision) for each in order[:MOST_NODES])


def _candidate(node: str, taken: str, decision: Decision) -> Candidate:
    return Candidate(
        node=node,
        taken=node == taken,
        used_percent=decision.fits[node].used_percent,
        connection=decision.connections.get(node),
        level=decision.levels.get(node),
    )


def _why_node(request: GpuRequest, decision: Decision) -> str:
    policy = request.policies.why_node
    if decision.connections:
        return f"the node that connects the pod's GPUs best comes first; among equals {policy}"
    return policy


def _gpus(request: GpuRequest, snapshot: Snapshot, usage: NodeUsage, taken: set[int]) -> Iterable[GpuCandidate]:
    need = max((need for need in request.needs if need is not None), key=lambda need: (need.memory_mib, need.cores))
    rules = Rules(node=usage.node, filter=request.filter, policy=request.policies.gpu, numa_bound=request.numa_bound)
    quota = quota_for(request.quota_class, snapshot.quotas.get(request.namespace, ()))
    for gpu in sorted(usage.gpus, key=lambda each: each.device.index):
        reason = why_not(gpu, need, rules, quota)
        yield GpuCandidate(
            gpu=gpu.device.index,
            taken=gpu.device.index in taken,
            used_percent=node_score((gpu,)).used_percent,
            free_memory_mib=free_memory_mib(gpu),
            free_cores_percent=free_cores(gpu),
            problem="" if reason is None else reason.words,
        )


def since_placed(
    pod: Pod, request: GpuRequest, snapshot: Snapshot, decision: Decision, held: Sequence[tuple[GpuNode, GpuView]]
) -> Iterable[str]:
    """Returns sentences about the pod's links, and about what has changed since it was placed."""
    node = pod.spec.node_name
    usage = node_of(snapshot, node)
    if len(held) > 1 and usage is not None:
        yield _links(request, usage, held)
    if node in decision.misfits:
        yield "The pod would not fit on its node any more. It stays there."
    elif decision.node not in (None, node):
        yield f"A decision taken now would name node {decision.node} first: the cluster has changed. The pod stays."
    if phase(pod) == "Pending":
        yield "The pod has its GPUs but does not run yet: kubectl describe pod shows what it waits for."


def _links(request: GpuRequest, usage: NodeUsage, held: Sequence[tuple[GpuNode, GpuView]]) -> str:
    scores = usage.node.pair_scores
    gpus = [gpu for _, gpu in held]
    pairs = [
        (a.device.index, b.device.index, scores.get(a.device.uuid, {}).get(b.device.uuid))
        for at, a in enumerate(gpus)
        for b in gpus[at + 1 :]
    ]
    words = sorted({link(score) for *_, score in pairs})
    total = sum(score or 0 for *_, score in pairs)
    best = place(request, usage, None)
    other = "" if isinstance(best, Misfit) else f"; a choice made now would have {spaced(connected(best, scores))}"
    which = ranges([gpu.device.index for gpu in gpus])
    return f"GPU {which} are connected by {', '.join(words)}: sum of pair scores {spaced(total)}{other}."
