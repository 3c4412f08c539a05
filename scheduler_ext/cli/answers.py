"""Decisions as `decide` prints them: JSON for programs, lines and tables for people."""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from program.tables import Column, FittingTable
from program.words import counted, model, ranges, spaced
from proto.annotations.pod_devices import encode_pod_devices
from proto.devices import ContainerShares, Device, DeviceShare
from scheduler_ext.capacity.nearest import grouped
from scheduler_ext.cluster.snapshot import NodeUsage
from scheduler_ext.decide.decision import Decision
from scheduler_ext.decide.explain import GpuLine, NodeLine
from scheduler_ext.decide.score import NodeScore
from scheduler_ext.requests import GpuRequest

_MOST = 5
"""Nodes that a line names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodDecision:
    """One decision to print. `request` is None for a pod without GPUs, or that cannot be read. `usage` is the chosen
    node before the pod. `error` is the reason why no node was judged or none fits; `note` means that any other node
    would do too.
    """

    pod: str
    decision: Decision
    request: GpuRequest | None = None
    usage: NodeUsage | None = None
    explanation: tuple[NodeLine, ...] = ()
    error: str = ""
    note: str = ""


def answer_document(answer: PodDecision) -> dict[str, object]:
    """Returns the JSON document of one pod. `error`, `note` and `nodes` (the explanation) appear only if they have
    content.
    """
    decision = answer.decision
    document: dict[str, object] = {
        "node": decision.node,
        "devices_to_allocate": encode_pod_devices(decision.shares),
        "scores": scores_document(decision),
        "failed": decision.failed,
    }
    remarks = {"error": answer.error, "note": answer.note, "nodes": list(map(_node_document, answer.explanation))}
    return document | {key: remark for key, remark in remarks.items() if remark}


def scores_document(decision: Decision) -> dict[str, float]:
    return {name: shortest(score) for name, score in decision.scores.items()}


def answers_document(answers: Sequence[PodDecision]) -> dict[str, object]:
    """Returns the JSON document of several pods."""
    return {"pods": [{"pod": answer.pod, **answer_document(answer)} for answer in answers]}


def answer_text(answers: Sequence[PodDecision]) -> RenderableType:
    """Returns text for people: for each pod its node and GPUs, or why no node fits."""
    lines = [line for answer in answers for line in _lines(answer)]
    if len(answers) > 1:
        fitting = sum(answer.decision.node is not None for answer in answers)
        lines.append(Text(f"{fitting} of {counted(len(answers), 'pod')} fit", "bold"))
    return Group(*lines)


def _lines(answer: PodDecision) -> Iterator[RenderableType]:
    decision, request = answer.decision, answer.request
    pod = Text.assemble("pod ", (answer.pod, "bold"))
    if request is None:
        yield pod.append(f": {answer.note or answer.error}")
        return
    if decision.node is None:
        nodes = counted(len(decision.misfits), "node")
        yield pod.append(f" fits on none of {nodes}" if decision.misfits else f": {answer.error}", "red")
        for group in grouped(decision.misfits, request.filter) if not answer.explanation else ():
            yield Text(f"  {counted(len(group.nodes), 'node')} ({_named(group.nodes)}): {group.reason}")
            if group.lacks:
                yield Text(f"    nearest is {group.nearest}: {group.lacks}")
    else:
        yield pod.append(" fits on node ").append(decision.node, "bold green")
        for need, shares in zip(request.needs, decision.shares, strict=True):
            if need is not None and answer.usage is not None:
                yield Text(f"  container {need.container} gets {_gpus(shares, answer.usage)}")
        yield from map(Text, _whys(request, decision))
    if answer.explanation:
        yield explanation_table(answer.explanation)


def _gpus(shares: ContainerShares, usage: NodeUsage) -> str:
    """Returns GPUs and the part of each: `GPUs 4–7 (A100-SXM4-80GB), 8 000 MiB and 30 % of cores of each`."""
    devices = {gpu.device.uuid: gpu.device for gpu in usage.gpus}
    held = [devices[share.uuid] for share in shares]
    models = ", ".join(dict.fromkeys(model(device.type) for device in held))
    named = f"{'GPU' if len(held) == 1 else 'GPUs'} {ranges([device.index for device in held])} ({models})"
    parts = dict.fromkeys(_part(share, devices[share.uuid]) for share in shares)
    return f"{named}, {' or '.join(parts)}{' each' if len(held) > 1 else ''}"


def _part(share: DeviceShare, device: Device) -> str:
    memory = "all memory" if share.memory_mib >= device.memory_mib else f"{spaced(share.memory_mib)} MiB"
    return f"{memory} and {share.cores} % of cores" if share.cores else f"{memory}, cores without limit"


def _whys(request: GpuRequest, decision: Decision) -> Iterator[str]:
    """Yields why it is this node and these GPUs, with the nodes that come next."""
    policies = request.policies
    ranked = decision.ranked
    links = decision.connections

    def described(name: str) -> str:
        used = f"{decision.fits[name].used_percent} % used"
        return f"{name} ({used}, links {spaced(links[name])})" if name in links else f"{name} ({used})"

    first = "its GPUs are connected best there; then " if links else ""
    order = ", ".join(map(described, ranked[:_MOST]))
    yield f"  node: {first}{policies.why_node}: {order}"
    if len(ranked) > _MOST:
        yield f"    and {counted(len(ranked) - _MOST, 'more node')}"
    yield f"  GPUs: {policies.why_gpus}"
    if decision.misfits:
        yield f"  it does not fit on {counted(len(decision.misfits), 'other node')}; --explain shows why"


def _named(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - _MOST} more" if len(nodes) > _MOST else ""
    return ", ".join(nodes[:_MOST]) + more


def explanation_table(explanation: Sequence[NodeLine]) -> FittingTable:
    """Returns one row for each node, and below it what its GPUs lack. GPUs that lack the same share a line."""
    rows = []
    for line in explanation:
        fits = (
            Text("chosen", "bold green") if line.chosen else Text("yes", "green") if line.score else Text("no", "red")
        )
        why = [line.sentence, *_alike(line.gpus)]
        if line.undecided:
            why.append(f"without a decision it serves {', '.join(line.undecided)}")
        rows.append((Text(line.node), fits, Text("\n".join(why))))
    columns = (Column(title="node"), Column(title="fits"), Column(title="why", wraps=True))
    return FittingTable(columns=columns, rows=rows)


def _alike(gpus: Iterable[GpuLine]) -> Iterator[str]:
    """Yields lines such as `GPUs 0–3: needs 30 000 MiB, 12 288 free of 40 960`."""
    indices: dict[str, list[int]] = {}
    for line in gpus:
        indices.setdefault(line.clause, []).append(line.refusal.index)
    for clause, same in indices.items():
        yield f"{'GPU' if len(same) == 1 else 'GPUs'} {ranges(same)}: {clause}"


def shortest(score: float) -> float:
    """Returns the shortest decimal that reads back as the same 32-bit number."""
    for digits in range(1, 10):
        short = float(f"{score:.{digits}g}")
        if struct.pack("f", short) == struct.pack("f", score):
            return short
    return score


def _node_document(line: NodeLine) -> dict[str, object]:
    head: dict[str, object] = {"node": line.node, "fits": line.score is not None, "why": line.sentence}
    if line.undecided:
        head["undecided"] = line.undecided
    if line.score is not None:
        links = {} if line.connection is None else {"pair_scores": line.connection}
        return head | {"chosen": line.chosen, **links, "score": _score_document(line.score)}
    return head | {"reason": line.reason, "gpus": list(map(_gpu_document, line.gpus))}


def _score_document(score: NodeScore) -> dict[str, float]:
    terms = {"total": score.total, "slots": score.replicas, "cores": score.cores, "memory": score.memory}
    return {name: shortest(term) for name, term in terms.items()}


def _gpu_document(line: GpuLine) -> dict[str, object]:
    refusal, amounts = line.refusal, line.refusal.amounts
    document: dict[str, object] = {"uuid": refusal.uuid, "reason": refusal.reason, "why": line.sentence}
    if amounts is None:
        return document
    numbers = {"needed": amounts.needed, "free": amounts.free, "total": amounts.total, "unit": amounts.unit}
    return document | numbers
