"""Answers `/filter`: the best node or a few of them, with the GPUs reserved before the next question."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest

from program.words import counted
from proto.extender import ExtenderArgs, FilterResult
from proto.kubernetes.notices import Notice
from proto.kubernetes.objects import Node, Pod
from scheduler_ext.cluster.events import Asked, Decided, Refused, RoomsGivenUp
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.decide.choice import NodeChoice, choice_of
from scheduler_ext.decide.decision import decide
from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.decide.kept_rooms import in_its_own, in_that_of_others
from scheduler_ext.decide.reasons import REMEDIES, Reason, words_of
from scheduler_ext.decide.unresolvable import told_apart
from scheduler_ext.requests import GpuRequest, RequestSettings, pod_key

MOST_LAPSED = 64
"""Members whose GPUs are searched for again in one question."""
LONGEST_PROBLEM = 256
"""Largest number of characters in a reason for every node."""

_MOST_NAMED = 5
"""Nodes that an event names for each reason: kube-apiserver takes 1024 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filtered:
    """An answer to `/filter`. `choice` is the decision behind it, if it was taken on live nodes; `asked` is their
    number.

    `offers` means that kube-scheduler chooses among the nodes that fit. `told` are notices for the pod's events besides
    the choice.
    """

    result: FilterResult
    choice: NodeChoice | None = None
    asked: int = 0
    offers: bool = False
    told: tuple[Notice, ...] = ()

    def notices(self) -> tuple[Notice, ...]:
        """Returns notices for the pod's events. They are made on request, and describe the state at that time."""
        choice = self.choice
        if choice is None or (self.offers and choice.node is not None):
            return self.told
        if choice.error:
            return (*self.told, _failure(choice.error))
        return (*self.told, _no_node(choice, self.asked) if choice.node is None else _fits(choice, self.asked))


def passed_through(args: ExtenderArgs) -> Filtered:
    """Returns all nodes, for a pod that requests no GPU."""
    return Filtered(result=FilterResult(node_names=args.node_names, nodes=args.nodes))


def refused(problem: str) -> Filtered:
    """Returns an answer without a node, as an error; kube-scheduler tries again later."""
    return Filtered(result=FilterResult(error=problem), told=(_failure(problem),))


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
    changes (determineSchedulingHintForInFlightPod of its queue).
    """
    names = args.node_names or [node.metadata.name for node in args.nodes or ()]
    result = FilterResult(failed_and_unresolvable_nodes=dict.fromkeys(names, problem[:LONGEST_PROBLEM]))
    return Filtered(result=result, told=(_failure(problem),))


def reserve(
    index: NodeIndex,
    cluster: Cluster,
    pod: Pod,
    request: GpuRequest,
    node_names: Sequence[str],
    *,
    now: float,
    lease_seconds: float,
    most: int = 1,
    prepared: bool = False,
) -> Filtered:
    """Decides among `node_names`; the result replaces the pod's reservations.

    The best `most` of the nodes that fit are offered. The pod's GPUs are reserved on each until its bind names one.
    Nothing is awaited between the decision and the reservation, so two pods never get the same share.

    A node whose lock is held for long comes last. `index` is the cluster's, `prepared` for the pod or not. `now`
    is in monotonic seconds, `lease_seconds` is the longest lease.
    """
    cluster.record(Asked(pod), now)
    ledger = cluster.ledger
    asked, crowded = len(node_names), ledger.kubelet.refusing(pod, node_names)
    if crowded:
        crowded = {name: f"{Reason.TOTAL_EXCEEDED}({crowded[name]})" for name in node_names if name in crowded}
        node_names = [name for name in node_names if name not in crowded]
    until = now + ledger.groups.lease_seconds(pod, lease_seconds)
    lost = _lost_member(index, cluster, pod, now=now, until=until)
    if lost:
        choice = NodeChoice(node=None, unresolvable=dict.fromkeys(node_names, f"{Reason.GROUP_MEMBER_LOST}({lost})"))
    elif crowded and not node_names:
        choice = NodeChoice(node=None)
    else:
        everywhere, node_names = node_names, cluster.pods.not_held(node_names, now)
        priority = pod.spec.priority or 0
        choice = _chosen(index, cluster, request, priority, node_names, now=now, prepared=prepared)
        if choice.node is None and len(node_names) < len(everywhere):
            node_names = everywhere
            choice = _chosen(index, cluster, request, priority, node_names, now=now, prepared=prepared)
    if choice.node is None:
        cluster.record(Refused(pod, request), now)
        return _nowhere(request, replace(choice, failed={**choice.failed, **crowded}), asked)
    others = index.others(request, node_names, choice.node, most - 1)
    cluster.record(Decided(pod_key(pod), pod, choice.node, choice.shares, until, others, request), now)
    offered = [choice.node] if most == 1 else [name for name in node_names if name == choice.node or name in others]
    result = FilterResult(node_names=offered)
    return Filtered(result=result, choice=choice, asked=asked, offers=most > 1, told=_warnings(request))


def _lost_member(index: NodeIndex, cluster: Cluster, pod: Pod, *, now: float, until: float) -> str:
    """Reserves again for waiting members whose lease has ended. Returns the name of one that can no longer get its
    GPUs; empty if all have theirs.

    Otherwise kube-scheduler would bind the group without that member.
    """
    for number, (uid, node, (member, request)) in enumerate(cluster.ledger.groups.lapsed(pod, now)):
        again = index.choose(request, [node])
        if again.node is None or number >= MOST_LAPSED:
            return member.metadata.name
        cluster.record(Decided(uid, member, again.node, again.shares, until, request=request), now)
    return ""


def _chosen(
    index: NodeIndex,
    cluster: Cluster,
    request: GpuRequest,
    priority: int,
    node_names: Sequence[str],
    *,
    now: float,
    prepared: bool,
) -> NodeChoice:
    """Returns a node where room is kept for the pod, else the best node. If it fits nowhere, room kept for lower
    priorities is given up for it.
    """
    own = in_its_own(cluster.ledger, request, priority, node_names)
    if own is not None:
        return choice_of(own)
    choice = index.choose(request, node_names, prepared=prepared)
    if choice.node is None and not choice.error:
        others = in_that_of_others(cluster.ledger, request, priority, node_names)
        if others is not None:
            decision, uids = others
            cluster.record(RoomsGivenUp(uids), now)
            return choice_of(decision)
    return choice


def simulate(request: GpuRequest, nodes: Sequence[Node], settings: RequestSettings) -> FilterResult:
    """Returns all given nodes that would fit if nothing ran on them. Reserves nothing."""
    ledger = Ledger(settings)
    ledger.replace_nodes(nodes)
    decision = decide(request, ledger.snapshot(), [node.metadata.name for node in nodes])
    if decision.error:
        return FilterResult(error=decision.error)
    fitting = [node for node in nodes if node.metadata.name in decision.fits]
    failed, unresolvable = told_apart(decision.misfits)
    return FilterResult(nodes=fitting, failed_nodes=failed, failed_and_unresolvable_nodes=unresolvable)


def _nowhere(request: GpuRequest, choice: NodeChoice, asked: int) -> Filtered:
    """Returns the answer without a node. It has the nodes on which evicting other pods would not help apart from the
    others.
    """
    result = FilterResult(error=choice.error)
    if not choice.error:
        result = FilterResult(failed_nodes=choice.failed, failed_and_unresolvable_nodes=choice.unresolvable)
    return Filtered(result=result, choice=choice, asked=asked, told=_warnings(request))


def _warnings(request: GpuRequest) -> tuple[Notice, ...]:
    warnings = request.policies.warnings
    return tuple(Notice(reason="UnknownPolicy", message=text, distinct=True) for text in warnings)


def _failure(message: str) -> Notice:
    return Notice(reason="FilteringFailed", message=message)


def _fits(choice: NodeChoice, asked: int) -> Notice:
    tally = choice.tally()
    ranked = [
        f"{node}:{score:.2f}" for node, score in sorted(tally.scores.items(), key=lambda item: (item[1], item[0]))
    ]
    listed = ",".join(ranked if len(ranked) == tally.fitting else [*ranked, "…"])
    unknown = f", {tally.unknown} nodes not looked at" if tally.unknown else ""
    return Notice(
        reason="FilteringSucceed",
        message=f"find fit node({choice.node}), {asked - tally.fitting - tally.unknown} nodes not fit, "
        f"{tally.fitting} nodes fit({listed}){unknown}",
        warning=False,
    )


def _no_node(choice: NodeChoice, asked: int) -> Notice:
    """Returns one line with the summary and the number of nodes for each reason: one event a minute is enough."""
    nodes: dict[str, list[str]] = {}
    for lasting, reasons in ((False, choice.failed), (True, choice.unresolvable)):
        words = {answer: ", ".join(words_of(answer, lasting=lasting)) for answer in set(reasons.values())}
        for name, answer in reasons.items():
            nodes.setdefault(words[answer], []).append(name)
    ranked = sorted(nodes.items(), key=lambda each: (-len(each[1]), each[0]))
    details = "; ".join(f"{counted(len(names), 'node')} ({_first(names)}): {reason}" for reason, names in ranked)
    answers = {*choice.failed.values(), *choice.unresolvable.values()}
    remedies = {remedy for answer in answers for word, remedy in REMEDIES.items() if word in answer}
    summary = f"no available node, {asked} nodes do not meet"
    return _failure(". ".join([f"{summary}: {details}" if details else summary, *sorted(remedies)]))


def _first(names: Sequence[str]) -> str:
    """Returns all names if they are few, else the first ones."""
    first = nsmallest(_MOST_NAMED, names)
    return ",".join([*first, "…"] if len(names) > len(first) else first)
