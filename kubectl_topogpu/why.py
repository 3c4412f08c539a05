"""`why`: why a pod waits and what would help, or why it has its node. No IO."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from kubectl_topogpu.cluster import Cluster, Gpu, GpuNode, phase, pod_name
from kubectl_topogpu.report import Report, Row, counted, gib, spaced
from kubectl_topogpu.who import described, gpus_of
from proto.kubernetes.objects import Pod
from scheduler_ext.cluster.snapshot import Snapshot
from scheduler_ext.requests import ContainerNeed, GpuRequest, RequestError, pod_key, read_request
from scheduler_ext.scheduling.decide import Decision, decide
from scheduler_ext.scheduling.explain import need_sentence
from scheduler_ext.scheduling.hopeless import is_hopeless
from scheduler_ext.scheduling.misfit import Misfit, NotOffered, Reason, Refusal, Unit
from scheduler_ext.scheduling.nodes import rank_nodes

MOST_TRIED = 30
"""The most nodes on which `why` tries which pods would have to go."""
MOST_HOLDERS = 200
MOST_SHOWN = 3

WORDS = {
    Reason.NODE_INSUFFICIENT_DEVICE: "has fewer GPUs than asked for",
    Reason.NOT_HEALTHY: "unhealthy",
    Reason.CORDONED: "cordoned",
    Reason.TYPE: "another model than asked for",
    Reason.UUID: "not one of the GPUs asked for",
    Reason.LIMITS: "a part of a GPU is asked for, and the node enforces no limits",
    Reason.SLOTS: "no slot left",
    Reason.EXCLUSIVE: "a whole GPU is asked for, and this one is shared",
    Reason.QUOTA: "the namespace's quota is used up",
    Reason.MEMORY: "too little free memory",
    Reason.CORES: "too few free cores",
    Reason.CORES_EXHAUSTED: "all cores reserved",
    Reason.MIG: "no free MIG instance that is large enough",
    Reason.NUMA: "too few such GPUs on one NUMA node",
    Reason.TOO_FEW: "fits, but there are too few such GPUs",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusing:
    """Nodes that refuse the pod for the same reasons. `nearest` is the node that lacks least; `lacks` says what it
    lacks.
    """

    reason: str
    nodes: tuple[str, ...]
    nearest: str = ""
    lacks: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """The pod fits on the node once these pods are gone; the smallest set that was found."""

    node: str
    pods: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerUp:
    """Another node on which the pod fits. `connection` is the sum of its GPUs' pair scores, None if not compared."""

    node: str
    used_percent: int
    connection: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer. `sentence` follows the pod's name; `asks` says what each container asks for."""

    pod: str
    sentence: str
    phase: str
    node: str = ""
    asks: tuple[str, ...] = ()
    groups: tuple[Refusing, ...] = ()
    ways: tuple[Way, ...] = ()
    runners_up: tuple[RunnerUp, ...] = ()
    hints: tuple[str, ...] = ()


def why(cluster: Cluster, pod: Pod) -> Report:
    """Returns one row for each group of nodes that refuses the pod, or for each node on which it would fit."""
    answer = answer_for(cluster, pod)
    rows: list[Row] = [
        {
            "pod": answer.pod,
            "reason": group.reason,
            "nodes": len(group.nodes),
            "nearest": group.nearest,
            "lacks": group.lacks,
        }
        for group in answer.groups
    ] or [
        {"pod": answer.pod, "reason": "", "nodes": 1, "nearest": each.node, "lacks": ""} for each in answer.runners_up
    ]
    return Report(rows=rows, document=answer, text=lambda wide: _text(answer, wide=wide))


def answer_for(cluster: Cluster, pod: Pod) -> Answer:
    name = pod_name(pod)
    try:
        request = read_request(pod, cluster.settings)
    except RequestError as error:
        return Answer(pod=name, phase=phase(pod), sentence=f"waits: {error}; no node fits until the pod is changed")
    if pod.has_ended:
        return Answer(pod=name, phase=phase(pod), sentence=f"has ended ({pod.status.phase}) and holds no GPU")
    if request is None:
        held = gpus_of(cluster, name)
        sentence = "asks for no GPU; kube-scheduler places it without TopoGPU"
        if held:
            sentence = f"is on node {pod.spec.node_name} with {described(held, name)}, though it asks for no GPU"
        return Answer(pod=name, phase=phase(pod), node=pod.spec.node_name, sentence=sentence)
    asks = tuple(need_sentence(need) for need in request.needs if need is not None)
    snapshot = cluster.snapshot(without=pod)
    decision = decide(request, snapshot, sorted({*snapshot.nodes, *_broken(snapshot)}))
    if pod.spec.node_name:
        return _placed(cluster, pod, request, decision, asks)
    return _waiting(cluster, pod, request, decision, asks)


def _broken(snapshot: Snapshot) -> Iterable[str]:
    """Returns nodes that should have GPUs but offer none."""
    return (name for name, reason in snapshot.unregistered.items() if ": " in reason)


def _placed(cluster: Cluster, pod: Pod, request: GpuRequest, decision: Decision, asks: tuple[str, ...]) -> Answer:
    name, node = pod_name(pod), pod.spec.node_name
    held = gpus_of(cluster, name)
    what = described(held, name) if held else "GPUs that no annotation names"
    ranked = rank_nodes(request.policies.node, decision.fits, decision.connections, decision.levels)
    hints = []
    if request.policies.gpu.topology_aware and len(held) > 1:
        hints.append(f"Its GPUs are connected with a sum of pair scores of {_connection(held)}.")
    policy = f"node policy {request.policies.node}, GPU policy {request.policies.gpu.text}"
    if decision.connections:
        hints.append(f"Nodes are compared by the connection of the pod's GPUs, then by {policy}.")
    else:
        hints.append(f"Nodes are compared by {policy}: {_BY_POLICY[request.policies.node]}.")
    if ranked and ranked[0] != node:
        now = "does not fit there any more" if node not in decision.fits else "stays where it is"
        hints.append(f"A decision taken now would name node {ranked[0]} first; the pod {now}.")
    order = [node, *(each for each in ranked if each != node)] if node in decision.fits else ranked
    return Answer(
        pod=name,
        phase=phase(pod),
        node=node,
        sentence=f"is on node {node} with {what}",
        asks=asks,
        runners_up=tuple(_runner_up(each, decision) for each in order[: MOST_SHOWN + 1]),
        hints=tuple(hints),
    )


_BY_POLICY = {"binpack": "the fullest node on which the pod fits", "spread": "the emptiest node on which the pod fits"}


def _connection(held: Sequence[tuple[GpuNode, Gpu]]) -> int:
    node = held[0][0]
    scores = {} if node.usage is None else node.usage.node.pair_scores
    uuids = [gpu.device.uuid for _, gpu in held]
    return sum(scores.get(a, {}).get(b, 0) for at, a in enumerate(uuids) for b in uuids[at + 1 :])


def _runner_up(node: str, decision: Decision) -> RunnerUp:
    score = decision.fits[node]
    used = round(100 * (score.slots + score.cores + score.memory) / 3)
    return RunnerUp(node=node, used_percent=used, connection=decision.connections.get(node))


def _waiting(cluster: Cluster, pod: Pod, request: GpuRequest, decision: Decision, asks: tuple[str, ...]) -> Answer:
    name, nodes = pod_name(pod), len(decision.fits) + len(decision.misfits)
    refusal = pod.status.unscheduled
    told = (f"kube-scheduler says: {refusal.message}",) if refusal is not None and refusal.message else ()
    if decision.node is not None:
        ranked = rank_nodes(request.policies.node, decision.fits, decision.connections, decision.levels)
        scheduler = pod.spec.scheduler_name or "none"
        hint = (
            f"GPUs are not what it waits for. It is placed by scheduler {scheduler}, which also looks at CPUs, memory, "
            "taints and selectors."
        )
        return Answer(
            pod=name,
            phase=phase(pod),
            sentence=f"waits, though its GPUs fit on {counted(len(ranked), 'node')} now, best on {ranked[0]}",
            asks=asks,
            runners_up=tuple(_runner_up(each, decision) for each in ranked[:MOST_SHOWN]),
            hints=(*told, hint),
        )
    ways = tuple(_ways(cluster, pod, request, decision))
    hints = (*told, *_hints(cluster, decision, ways))
    sentence = f"waits: {_nowhere(nodes)}"
    return Answer(
        pod=name, phase=phase(pod), sentence=sentence, asks=asks, groups=_groups(decision), ways=ways, hints=hints
    )


def _nowhere(nodes: int) -> str:
    if not nodes:
        return "no node has GPUs"
    return (
        "its GPUs do not fit on the only node that has some" if nodes == 1 else f"its GPUs fit on none of {nodes} nodes"
    )


def _groups(decision: Decision) -> tuple[Refusing, ...]:
    """Groups the nodes; the most common reason comes first."""
    alike: dict[str, list[tuple[float, str, str]]] = {}
    for node, misfit in decision.misfits.items():
        reason = _reason(misfit)
        alike.setdefault(reason, []).append((*_lack(misfit), node))
    groups = []
    for reason, nodes in sorted(alike.items(), key=lambda item: (-len(item[1]), item[0])):
        _, lacks, nearest = min(nodes)
        names = tuple(sorted(node for _, _, node in nodes))
        groups.append(Refusing(reason=reason, nodes=names, nearest=nearest if lacks else "", lacks=lacks))
    return tuple(groups)


def _reason(misfit: Misfit | NotOffered) -> str:
    if isinstance(misfit, NotOffered):
        return misfit.reason.partition(": ")[2] or misfit.reason
    if not misfit.verdicts:
        return f"{counted(misfit.cards, 'GPU')}, {misfit.need.count} asked for"
    words = {WORDS.get(reason, str(reason)) for _, reason in misfit.verdicts}
    return "; ".join(sorted(words))


def _lack(misfit: Misfit | NotOffered) -> tuple[float, str]:
    """Returns how far the node is from fitting, as a fraction of the request and in words.

    For a request of `count` GPUs, the count-th nearest GPU decides.
    """
    if isinstance(misfit, NotOffered) or not misfit.verdicts:
        return 1e9, ""
    by_distance = sorted(((_distance(each), each.index, each) for each in misfit.refusals), key=lambda each: each[:2])
    distance, _, refusal = by_distance[min(misfit.need.count, len(by_distance)) - 1]
    return distance, _lacking(refusal, misfit.need)


def _distance(refusal: Refusal) -> float:
    if refusal.reason is Reason.TOO_FEW:
        return 0.0
    amounts = refusal.amounts
    if amounts is None:
        return 1e6
    return max(amounts.needed - amounts.free, 0) / max(amounts.needed, 1)


def _lacking(refusal: Refusal, need: ContainerNeed) -> str:
    gpu, amounts = f"GPU {refusal.index}", refusal.amounts
    if refusal.reason is Reason.TOO_FEW:
        return f"{gpu} fits, but fewer than {need.count} GPUs do"
    if amounts is None:
        return f"{gpu}: {WORDS.get(refusal.reason, refusal.reason)}"
    if refusal.reason is Reason.EXCLUSIVE:
        return f"{gpu} is shared by {counted(amounts.total - amounts.free, 'container')}"
    if refusal.reason is Reason.SLOTS:
        return f"all {amounts.total} slots of {gpu} are taken"
    free, needed = max(amounts.free, 0), amounts.needed
    if amounts.unit is Unit.MIB:
        have, want = gib(free), gib(needed)
        if have == want:
            have, want = f"{spaced(free)} MiB", f"{spaced(needed)} MiB"
    else:
        have, want = f"{spaced(free)} {amounts.unit}", f"{spaced(needed)} {amounts.unit}"
    if refusal.reason is Reason.QUOTA:
        return f"the quota has {have} left, {want} asked for"
    what = "memory" if amounts.unit is Unit.MIB else "cores"
    return f"{gpu} has {have} of {what} free, {want} asked for"


def _ways(cluster: Cluster, pod: Pod, request: GpuRequest, decision: Decision) -> Iterable[Way]:
    """Returns the nodes where the fewest pods would have to go; only the most promising are tried."""
    nodes = [
        node for node, misfit in decision.misfits.items() if isinstance(misfit, Misfit) and not is_hopeless(misfit)
    ]
    holders = {node: cluster.holders(node) for node in nodes}
    tried = sorted(
        (node for node in nodes if 0 < len(holders[node]) <= MOST_HOLDERS), key=lambda node: (len(holders[node]), node)
    )
    found = []
    for node in tried[:MOST_TRIED]:
        pods = _must_go(cluster, pod, request, node, holders[node])
        if pods:
            found.append(Way(node=node, pods=pods))
    return sorted(found, key=lambda way: (len(way.pods), way.node))[:MOST_SHOWN]


def _must_go(cluster: Cluster, pod: Pod, request: GpuRequest, node: str, holders: Sequence[Pod]) -> tuple[str, ...]:
    """Returns which pods have to go for this one, the least important first; empty if that is not enough."""

    def fits(gone: Iterable[Pod]) -> bool:
        uids = {pod_key(pod), *map(pod_key, gone)}
        left = cluster.ledger.without(node, uids, request.namespace, priority=2**31)
        return decide(request, left, [node]).node is not None

    gone = list(holders)
    if not fits(gone):
        return ()
    for each in sorted(holders, key=lambda each: (-(each.spec.priority or 0), each.metadata.creation_timestamp or "")):
        others = [other for other in gone if other is not each]
        if fits(others):
            gone = others
    return tuple(sorted(map(pod_name, gone)))


def _hints(cluster: Cluster, decision: Decision, ways: Sequence[Way]) -> Iterable[str]:
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
    if Reason.LIMITS in reasons:
        yield "Ask for whole GPUs, install HAMi-core on the nodes, or set unenforced_shares of their daemons to allow."
    if Reason.QUOTA in reasons:
        yield "The ResourceQuota of the namespace has to grow, or other pods of the namespace have to go."
    if not ways and all(map(is_hopeless, misfits)):
        yield "Deleting pods does not help: the pod would not fit on an empty node either."


def _text(answer: Answer, *, wide: bool) -> RenderableType:
    lines: list[RenderableType] = [Text.assemble("pod ", (answer.pod, "bold"), f" {answer.sentence}")]
    lines += [Text(f"  {ask}", "dim") for ask in answer.asks]
    if answer.groups:
        lines.append(Text("Why not:", "bold"))
    for group in answer.groups:
        lines.append(Text.assemble("  ", (counted(len(group.nodes), "node"), "red"), f": {group.reason}"))
        if group.lacks:
            lines.append(Text(f"      nearest is {group.nearest}: {group.lacks}"))
        if wide:
            lines.append(Text(f"      {', '.join(group.nodes)}", "dim"))
    if answer.ways:
        lines.append(Text("It would fit", "bold"))
    lines += [
        Text.assemble("  on ", (way.node, "green"), f" without {counted(len(way.pods), 'pod')}: {', '.join(way.pods)}")
        for way in answer.ways
    ]
    if answer.runners_up:
        lines.append(Text("Nodes on which it fits, as they are without it:", "bold"))
    for each in answer.runners_up:
        links = "" if each.connection is None else f", pair scores {each.connection}"
        mark = "*" if each.node == answer.node else " "
        lines.append(Text(f" {mark} {each.node}: {each.used_percent} % used{links}"))
    lines += [Text(hint) for hint in answer.hints]
    return Group(*lines)
