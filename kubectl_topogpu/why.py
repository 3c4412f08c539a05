"""`why`: why a pod waits and what would help, or why it is where it is. No IO."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from rich.console import Group, RenderableType
from rich.text import Text

from kubectl_topogpu.cluster import GpuCluster, phase
from kubectl_topogpu.placed import Candidate, GpuCandidate, PodPlacement, candidates, placement, since_placed
from kubectl_topogpu.report import Row, TableReport
from kubectl_topogpu.who import described, gpus_of
from program.tables import Column, FittingTable
from program.words import counted, gib, spaced
from proto.kubernetes.objects import Pod
from scheduler_ext.capacity.largest import Smaller, smaller
from scheduler_ext.capacity.nearest import Refusing, Way, ways
from scheduler_ext.capacity.pod_verdict import PodVerdict, hints, judge_pod, remarks, without_effect
from scheduler_ext.cluster.snapshot import Snapshot
from scheduler_ext.decide.decision import Decision
from scheduler_ext.decide.explain import need_sentence
from scheduler_ext.requests import GpuRequest

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
    """The answer. `sentence` follows the pod's name; `requests` has a sentence for each container."""

    pod: str
    sentence: str
    phase: str
    node: str = ""
    requests: tuple[str, ...] = ()
    refused: tuple[Refusing, ...] = ()
    ways: tuple[FitsWithout, ...] = ()
    smaller: Smaller | None = None
    nodes: tuple[Candidate, ...] = ()
    """Nodes on which it fits, the best first; of a placed pod its own node first."""
    placement: PodPlacement | None = None
    """The place of a placed pod, and the reasons; None for a pod that waits."""
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
    name = pod.full_name
    if pod.has_ended:
        return PodAccount(pod=name, phase=phase(pod), sentence=f"has ended ({pod.end}) and holds no GPU")
    snapshot = cluster.snapshot(pod)
    answer = judge_pod(pod, cluster.settings, snapshot, cluster.gang_of(pod))
    node, request, decision = pod.spec.node_name, answer.request, answer.decision
    if not node:
        return _waiting(cluster, pod, answer, snapshot, brief=brief)
    if request is not None and decision is not None:
        return _placed(cluster, pod, request, snapshot, decision)
    held = gpus_of(cluster, name)
    sentence = f"is on node {node} with {described(held, name)}, though it asks for no GPU" if held else answer.sentence
    return PodAccount(pod=name, phase=phase(pod), node=node, sentence=sentence)


def _requests(request: GpuRequest) -> tuple[str, ...]:
    return tuple(need_sentence(need) for need in request.needs if need is not None)


def _placed(cluster: GpuCluster, pod: Pod, request: GpuRequest, snapshot: Snapshot, decision: Decision) -> PodAccount:
    name, node = pod.full_name, pod.spec.node_name
    held = gpus_of(cluster, name)
    words = cluster.resizes.get(name, "")
    ranked = decision.ranked
    order = [node, *(each for each in ranked if each != node)] if node in decision.fits else ranked
    return PodAccount(
        pod=name,
        phase=phase(pod),
        node=node,
        sentence=f"is on node {node} with {described(held, name) if held else _UNNAMED}{words and f'; {words}'}",
        requests=_requests(request),
        nodes=candidates(decision, order, node),
        placement=placement(request, snapshot, decision, node, held),
        hints=(*since_placed(pod, request, snapshot, decision, held), *without_effect(pod, request)),
    )


def _waiting(cluster: GpuCluster, pod: Pod, answer: PodVerdict, snapshot: Snapshot, *, brief: bool) -> PodAccount:
    request, decision = answer.request, answer.decision
    account = PodAccount(
        pod=pod.full_name,
        phase=phase(pod),
        sentence=answer.sentence,
        requests=() if request is None else _requests(request),
        refused=answer.refused,
        hints=tuple(remarks(pod, answer)),
    )
    if brief or request is None or decision is None:
        return account
    if decision.node is not None:
        return replace(account, nodes=candidates(decision, decision.ranked))
    found = ways(partial(cluster.ledger.alone, namespace=request.namespace), request, decision.misfits, cluster.holders)
    return replace(
        account,
        ways=tuple(map(_gone, found)),
        smaller=smaller(request, snapshot),
        hints=(*hints(answer, found), *account.hints),
    )


def _gone(way: Way) -> FitsWithout:
    return FitsWithout(node=way.node, pods=tuple(sorted(f"{each.namespace}/{each.name}" for each in way.gone)))


def _text(answer: PodAccount, *, wide: bool) -> RenderableType:
    lines: list[RenderableType] = [Text.assemble("pod ", (answer.pod, "bold"), f" {answer.sentence}")]
    lines += [Text(f"  {ask}", "dim") for ask in answer.requests]
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
        yield Text(f"  now, if it asked for {answer.smaller.words}")
    for way in answer.ways:
        named = way.pods if wide else way.pods[:MOST_NAMED]
        rest = "" if named == way.pods else f" and {len(way.pods) - len(named)} more (-o wide names all)"
        yield Text.assemble(
            "  on ", (way.node, "green"), f" without {counted(len(way.pods), 'pod')}: {', '.join(named)}{rest}"
        )


def _placement_lines(found: PodPlacement, nodes: Sequence[Candidate]) -> Iterable[RenderableType]:
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
