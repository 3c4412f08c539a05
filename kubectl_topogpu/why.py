"""`why`: why a pod waits and what would help, or why it is where it is. No IO."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from kubectl_topogpu.cluster import GpuCluster, phase, pod_name
from kubectl_topogpu.placed import Candidate, GpuCandidate, Placement, candidates, hints, placement
from kubectl_topogpu.report import Row, TableReport
from kubectl_topogpu.who import described, gpus_of
from program.tables import Column, FittingTable
from program.words import counted, gib, spaced
from proto.kubernetes.objects import Pod
from scheduler_ext.capacity.evictions import Way, ways
from scheduler_ext.capacity.largest import Amount, Smaller, smaller
from scheduler_ext.capacity.nearest import Refusing, grouped
from scheduler_ext.cluster.snapshot import Snapshot
from scheduler_ext.decide.decision import Decision, decide
from scheduler_ext.decide.explain import need_sentence
from scheduler_ext.decide.misfit import Misfit
from scheduler_ext.decide.preference import rank_nodes
from scheduler_ext.decide.reasons import REMEDIES, Reason
from scheduler_ext.decide.unresolvable import is_unresolvable
from scheduler_ext.requests import GpuRequest, RequestError, read_request

MOST_NAMED = 5
"""Pods that have to go, in a sentence."""
_UNNAMED = "GPUs that no annotation names"


@dataclass(frozen=True, slots=True, kw_only=True)
class FitsWithout:
    """The pod fits on the node once these pods are gone."""

    node: str
    pods: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodAccount:
    """The answer. `sentence` follows the pod's name; `asks` is the request of each container."""

    pod: str
    sentence: str
    phase: str
    node: str = ""
    asks: tuple[str, ...] = ()
    refused: tuple[Refusing, ...] = ()
    ways: tuple[FitsWithout, ...] = ()
    smaller: Smaller | None = None
    nodes: tuple[Candidate, ...] = ()
    """Nodes on which it fits, the best first; of a placed pod its own node first."""
    placement: Placement | None = None
    """Where a placed pod is, and why; None for a pod that waits."""
    hints: tuple[str, ...] = ()


def why(cluster: GpuCluster, pod: Pod) -> TableReport:
    """Returns one row for each group of nodes that refuses the pod, or for each node on which it would fit."""
    answer = answer_for(cluster, pod)
    rows: list[Row] = [
        {
            "pod": answer.pod,
            "reason": each.reason,
            "nodes": len(each.nodes),
            "nearest": each.nearest,
            "lacks": each.lacks,
        }
        for each in answer.refused
    ] or [{"pod": answer.pod, "reason": "", "nodes": 1, "nearest": each.node, "lacks": ""} for each in answer.nodes]
    return TableReport(rows=rows, document=answer, named="pod", text=lambda wide: _text(answer, wide=wide))


def answer_for(cluster: GpuCluster, pod: Pod, *, brief: bool = False) -> PodAccount:
    """A `brief` answer leaves out what would help."""
    name = pod_name(pod)
    try:
        request = read_request(pod, cluster.settings)
    except RequestError as error:
        return PodAccount(pod=name, phase=phase(pod), sentence=f"waits: {error}; no node fits until the pod is changed")
    if pod.has_ended:
        return PodAccount(pod=name, phase=phase(pod), sentence=f"has ended ({pod.status.phase}) and holds no GPU")
    if request is None:
        held = gpus_of(cluster, name)
        sentence = "asks for no GPU; kube-scheduler places it without TopoGPU"
        if held:
            sentence = f"is on node {pod.spec.node_name} with {described(held, name)}, though it asks for no GPU"
        return PodAccount(pod=name, phase=phase(pod), node=pod.spec.node_name, sentence=sentence)
    snapshot = cluster.snapshot(pod)
    decision = decide(request, snapshot, sorted({*snapshot.nodes, *_broken(snapshot)}))
    if pod.spec.node_name:
        return _placed(cluster, pod, request, snapshot, decision)
    return _waiting(cluster, pod, request, snapshot, decision, brief=brief)


def _broken(snapshot: Snapshot) -> Iterable[str]:
    """Returns nodes that should have GPUs but offer none."""
    return (name for name, reason in snapshot.unregistered.items() if ": " in reason)


def _ranked(request: GpuRequest, decision: Decision) -> list[str]:
    return rank_nodes(request.policies.node, decision.fits, decision.connections, decision.levels)


def _asks(request: GpuRequest) -> tuple[str, ...]:
    return tuple(need_sentence(need) for need in request.needs if need is not None)


def _placed(cluster: GpuCluster, pod: Pod, request: GpuRequest, snapshot: Snapshot, decision: Decision) -> PodAccount:
    name, node = pod_name(pod), pod.spec.node_name
    held = gpus_of(cluster, name)
    ranked = _ranked(request, decision)
    order = [node, *(each for each in ranked if each != node)] if node in decision.fits else ranked
    return PodAccount(
        pod=name,
        phase=phase(pod),
        node=node,
        sentence=f"is on node {node} with {described(held, name) if held else _UNNAMED}",
        asks=_asks(request),
        nodes=candidates(decision, order, node),
        placement=placement(request, snapshot, decision, node, held),
        hints=tuple(hints(pod, request, snapshot, decision, held)),
    )


def _waiting(
    cluster: GpuCluster, pod: Pod, request: GpuRequest, snapshot: Snapshot, decision: Decision, *, brief: bool
) -> PodAccount:
    name, asks = pod_name(pod), _asks(request)
    refusal = pod.status.unscheduled
    told = (f"kube-scheduler says: {refusal.message}",) if refusal is not None and refusal.message else ()
    if decision.node is not None:
        ranked = _ranked(request, decision)
        scheduler = pod.spec.scheduler_name or "none"
        hint = (
            f"GPUs are not what it waits for. It is placed by scheduler {scheduler}, which also looks at CPUs, memory, "
            "taints and selectors."
        )
        return PodAccount(
            pod=name,
            phase=phase(pod),
            sentence=f"waits, though its GPUs fit on {counted(len(ranked), 'node')} now, best on {ranked[0]}",
            asks=asks,
            nodes=candidates(decision, ranked),
            hints=(*told, hint),
        )
    sentence, refused = f"waits: {_nowhere(len(decision.misfits))}", grouped(decision.misfits, request.filter)
    if brief:
        return PodAccount(pod=name, phase=phase(pod), sentence=sentence, asks=asks, refused=refused)
    found = ways(cluster.deciding(), request, decision.misfits, cluster.holders)
    return PodAccount(
        pod=name,
        phase=phase(pod),
        sentence=sentence,
        asks=asks,
        refused=refused,
        ways=tuple(map(_gone, found)),
        smaller=smaller(request, snapshot),
        hints=(*told, *_hints(cluster, decision, found)),
    )


def _gone(way: Way) -> FitsWithout:
    return FitsWithout(node=way.node, pods=tuple(sorted(f"{each.namespace}/{each.name}" for each in way.gone)))


def _nowhere(nodes: int) -> str:
    if not nodes:
        return "no node has GPUs"
    return (
        "its GPUs do not fit on the only node that has some" if nodes == 1 else f"its GPUs fit on none of {nodes} nodes"
    )


def _hints(cluster: GpuCluster, decision: Decision, found: Sequence[Way]) -> Iterable[str]:
    misfits = [misfit for misfit in decision.misfits.values() if isinstance(misfit, Misfit)]
    if not misfits:
        yield "No node offers GPUs: is the node daemon running?"
        return
    need = misfits[0].need
    largest = max((gpu.device.memory_mib for node in cluster.nodes for gpu in node.gpus), default=0)
    if need.memory_mib > largest:
        yield f"No GPU has {gib(need.memory_mib)}: the largest has {gib(largest)}. Ask for less memory."
    most = max((len(node.gpus) for node in cluster.nodes), default=0)
    if need.count > most:
        yield f"No node has {counted(need.count, 'GPU')}: the largest has {most}. Ask for fewer, or use several pods."
    reasons = {reason for misfit in misfits for _, reason in misfit.verdicts}
    if reasons and reasons <= {Reason.TYPE, Reason.UUID}:
        models = sorted({gpu.device.type for node in cluster.nodes for gpu in node.gpus})
        yield f"The pod's annotations allow none of the GPUs there are: {', '.join(models)}."
    unlimited = [misfit for misfit in misfits if any(reason is Reason.LIMITS for _, reason in misfit.verdicts)]
    yield from sorted({f"{REMEDIES[misfit.unheld]}." for misfit in unlimited})
    if Reason.QUOTA in reasons:
        yield "The ResourceQuota of the namespace has to grow, or other pods of the namespace have to go."
    if not found and all(map(is_unresolvable, misfits)):
        yield "Deleting pods does not help: the pod would not fit on an empty node either."


def _text(answer: PodAccount, *, wide: bool) -> RenderableType:
    lines: list[RenderableType] = [Text.assemble("pod ", (answer.pod, "bold"), f" {answer.sentence}")]
    lines += [Text(f"  {ask}", "dim") for ask in answer.asks]
    lines += _refused_lines(answer, wide=wide)
    lines += _change_lines(answer, wide=wide)
    if answer.placement is not None:
        lines += _placement_lines(answer.placement, answer.nodes)
    elif answer.nodes:
        lines += [Text("Nodes on which it fits:", "bold"), _node_table(answer.nodes)]
    return Group(*lines, *map(Text, answer.hints))


def _refused_lines(answer: PodAccount, *, wide: bool) -> Iterable[RenderableType]:
    if answer.refused:
        yield Text("Why not:", "bold")
    for each in answer.refused:
        yield Text.assemble("  ", (counted(len(each.nodes), "node"), "red"), f": {each.reason}")
        if each.lacks:
            yield Text(f"      nearest is {each.nearest}: {each.lacks}")
        if wide:
            yield Text(f"      {', '.join(each.nodes)}", "dim")


def _change_lines(answer: PodAccount, *, wide: bool) -> Iterable[RenderableType]:
    if not answer.ways and answer.smaller is None:
        return
    yield Text("It would fit", "bold")
    if answer.smaller is not None:
        yield Text(f"  now, if it asked for {_less(answer.smaller)}")
    for way in answer.ways:
        named = way.pods if wide else way.pods[:MOST_NAMED]
        rest = "" if named == way.pods else f" and {len(way.pods) - len(named)} more (-o wide names all)"
        yield Text.assemble(
            "  on ", (way.node, "green"), f" without {counted(len(way.pods), 'pod')}: {', '.join(named)}{rest}"
        )


def _less(smaller: Smaller) -> str:
    match smaller.amount:
        case Amount.MEMORY:
            return f"at most {spaced(smaller.at_most)} MiB of each GPU instead of {spaced(smaller.asked)} MiB"
        case Amount.CORES:
            return f"at most {smaller.at_most} % of each GPU's cores instead of {smaller.asked} %"
        case Amount.GPUS:
            return f"at most {counted(smaller.at_most, 'GPU')} for a container instead of {smaller.asked}"


def _placement_lines(found: Placement, nodes: Sequence[Candidate]) -> Iterable[RenderableType]:
    yield Text.assemble(("Why this node: ", "bold"), found.why_node)
    if nodes:
        yield _node_table(nodes)
    rest = [f"{counted(found.more_nodes, 'more node')} on which it fits"] if found.more_nodes else []
    rest += [f"{counted(found.unfit_nodes, 'node')} on which it does not fit"] if found.unfit_nodes else []
    if rest:
        yield Text(f"  and {', '.join(rest)}", "dim")
    if found.gpus:
        yield Text.assemble(("Why these GPUs: ", "bold"), found.why_gpus)
        yield _gpu_table(found.gpus)


def _node_table(nodes: Sequence[Candidate]) -> FittingTable:
    links, levels = any(each.connection is not None for each in nodes), any(each.level is not None for each in nodes)
    columns = [
        Column(title=""),
        Column(title="node", wraps=True),
        Column(title="used without it", right=True),
        *([Column(title="links", right=True)] if links else []),
        *([Column(title="fgd", right=True)] if levels else []),
    ]
    rows = [
        (
            "  *" if each.taken else "   ",
            each.node,
            f"{each.used_percent} %",
            *([spaced(each.connection or 0)] if links else []),
            *([f"{each.level or 0} of 100"] if levels else []),
        )
        for each in nodes
    ]
    return FittingTable(columns=columns, rows=rows)


def _gpu_table(gpus: Sequence[GpuCandidate]) -> FittingTable:
    columns = (
        Column(title=""),
        Column(title="GPU", right=True),
        Column(title="used without it", right=True),
        Column(title="memory free", right=True),
        Column(title="cores free", right=True),
        Column(title="", wraps=True),
    )
    rows = [
        (
            "  *" if each.taken else "   ",
            str(each.gpu),
            f"{each.used_percent} %",
            gib(each.free_memory_mib),
            f"{each.free_cores_percent} %",
            Text(each.problem, "dim"),
        )
        for each in gpus
    ]
    return FittingTable(columns=columns, rows=rows)
