"""Decisions as `decide` prints them: JSON for programs, lines and tables for people."""

import struct
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from proto.annotations.pod_devices import encode_pod_devices
from scheduler_ext.scheduling.decide import Decision
from scheduler_ext.scheduling.explain import GpuLine, NodeLine
from scheduler_ext.scheduling.score import NodeScore


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One decision to print. `error` says why no node was judged or none fits; `note` says that any other node would do
    too.
    """

    decision: Decision
    explanation: tuple[NodeLine, ...] = ()
    error: str = ""
    note: str = ""


def answer_document(answer: Answer) -> dict[str, object]:
    """The JSON document. `error`, `note` and `nodes` (the explanation) appear only if they have content."""
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


def answer_text(answer: Answer) -> str:
    decision = answer.decision
    devices = encode_pod_devices(decision.shares)
    lines = [f"node     {decision.node or 'none fits'}", f"devices  {devices or 'none'}"]
    if not answer.explanation:
        lines += [f"score    {name}  {score}" for name, score in sorted(scores_document(decision).items())]
        lines += [f"failed   {name}  {reason}" for name, reason in sorted(decision.failed.items())]
    lines += [f"error    {answer.error}"] if answer.error else []
    lines += [f"note     {answer.note}"] if answer.note else []
    return "\n".join(lines)


def explanation_table(explanation: tuple[NodeLine, ...]) -> Table:
    """One line for each node, and below it what its GPUs lack. GPUs with the same reason share a line."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("node")
    table.add_column("fits")
    table.add_column("why")
    for line in explanation:
        fits = (
            Text("chosen", "bold green") if line.chosen else Text("yes", "green") if line.score else Text("no", "red")
        )
        why = [line.sentence, *dict.fromkeys(f"  {gpu.sentence}" for gpu in line.gpus)]
        if line.undecided:
            why.append(f"  without a decision it serves {', '.join(line.undecided)}")
        table.add_row(Text(line.node), fits, Text("\n".join(why)))
    return table


def shortest(score: float) -> float:
    """The shortest decimal that reads back as the same 32-bit number."""
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
    terms = {"total": score.total, "slots": score.slots, "cores": score.cores, "memory": score.memory}
    return {name: shortest(term) for name, term in terms.items()}


def _gpu_document(line: GpuLine) -> dict[str, object]:
    refusal, amounts = line.refusal, line.refusal.amounts
    document: dict[str, object] = {"uuid": refusal.uuid, "reason": refusal.reason, "why": line.sentence}
    if amounts is None:
        return document
    numbers = {"needed": amounts.needed, "free": amounts.free, "total": amounts.total, "unit": amounts.unit}
    return document | numbers
