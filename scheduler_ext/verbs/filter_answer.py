"""The answer to `/filter`, and its words in the pod's events."""

from collections.abc import Sequence
from dataclasses import dataclass

from proto.extender import ExtenderArgs, FilterResult
from proto.kubernetes.objects import Notice
from scheduler_ext.capacity.nearest import Refusing, by_reason, on_nodes
from scheduler_ext.decide.decision import NodeChoice
from scheduler_ext.decide.reasons import REMEDIES
from scheduler_ext.requests import GpuRequest

LONGEST_PROBLEM = 256
"""Largest number of characters in a reason for every node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filtered:
    """An answer to `/filter`. `choice` is the decision behind it, if it was taken on live nodes; `candidates` is
    their number.

    `offers` means that kube-scheduler chooses among the nodes that fit. `request` is the pod's, if a node was chosen or
    none fits; `problem` is for the pod's events.
    """

    result: FilterResult
    choice: NodeChoice | None = None
    candidates: int = 0
    offers: bool = False
    request: GpuRequest | None = None
    problem: str = ""

    def notices(self) -> tuple[Notice, ...]:
        """Returns notices for the pod's events. They are made on request, and describe the state at that time."""
        choice, unknown = self.choice, self.request.policies.warnings if self.request is not None else ()
        notes = tuple(Notice(reason="UnknownPolicy", message=text, distinct=True) for text in unknown)
        problem = self.problem if choice is None else choice.error
        if problem:
            return (*notes, _failure(problem))
        if choice is None or (self.offers and choice.node is not None):
            return notes
        return (*notes, _no_node(choice, self.candidates) if choice.node is None else _fits(choice, self.candidates))


def passed_through(args: ExtenderArgs) -> Filtered:
    """Returns all nodes, for a pod that requests no GPU."""
    return Filtered(result=FilterResult(node_names=args.node_names, nodes=args.nodes))


def refused(problem: str) -> Filtered:
    """Returns an answer without a node, as an error; kube-scheduler tries again later."""
    return Filtered(result=FilterResult(error=problem), problem=problem)


def kept(node: str, node_names: Sequence[str]) -> Filtered:
    """Returns the answer for a pod whose Binding to the node was sent: on another node its GPUs would be lost to
    others.
    """
    if node not in node_names:
        return refused(f"the pod's Binding to node {node} may have been written already")
    return Filtered(result=FilterResult(node_names=[node]))


def unresolvable(problem: str, args: ExtenderArgs) -> Filtered:
    """Returns the answer for a pod that no node will ever fit as it is written: it waits until it is changed.

    An error would make kube-scheduler try again and again. If each node refuses the pod, it waits until something
    changes (determineSchedulingHintForInFlightPod of its queue). A question about given nodes has no events.
    """
    names = args.node_names or [node.metadata.name for node in args.nodes or ()]
    result = FilterResult(failed_and_unresolvable_nodes=dict.fromkeys(names, problem[:LONGEST_PROBLEM]))
    return Filtered(result=result, problem=problem if args.nodes is None else "")


def nowhere(request: GpuRequest, choice: NodeChoice, candidates: int) -> Filtered:
    """Returns the answer without a node. It has the nodes on which evicting other pods would not help apart from the
    others.
    """
    result = FilterResult(error=choice.error)
    if not choice.error:
        result = FilterResult(failed_nodes=choice.failed, failed_and_unresolvable_nodes=choice.unresolvable)
    return Filtered(result=result, choice=choice, candidates=candidates, request=request)


def _failure(message: str) -> Notice:
    return Notice(reason="FilteringFailed", message=message)


def _fits(choice: NodeChoice, candidates: int) -> Notice:
    tally = choice.tally()
    ranked = [
        f"{node}:{score:.2f}" for node, score in sorted(tally.scores.items(), key=lambda item: (item[1], item[0]))
    ]
    listed = ",".join(ranked if len(ranked) == tally.fitting else [*ranked, "…"])
    unknown = f", {tally.unknown} nodes not looked at" if tally.unknown else ""
    return Notice(
        reason="FilteringSucceed",
        message=f"find fit node({choice.node}), {candidates - tally.fitting - tally.unknown} nodes not fit, "
        f"{tally.fitting} nodes fit({listed}){unknown}",
        warning=False,
    )


def _no_node(choice: NodeChoice, candidates: int) -> Notice:
    """Returns one line with the summary and the number of nodes for each reason: one event a minute is enough."""
    details = "; ".join(map(on_nodes, reasons_of(choice)))
    answers = {*choice.failed.values(), *choice.unresolvable.values()}
    remedies = {remedy for answer in answers for word, remedy in REMEDIES.items() if word in answer}
    summary = f"no available node, {candidates} nodes do not meet"
    return _failure(". ".join([f"{summary}: {details}" if details else summary, *sorted(remedies)]))


def reasons_of(choice: NodeChoice) -> list[Refusing]:
    """Returns the nodes of an answer by reason, in the words that people read everywhere."""
    known = choice.words()
    return by_reason(
        choice.failed, choice.unresolvable, known, lambda name: choice.misfit(name) if name in known else None
    )
