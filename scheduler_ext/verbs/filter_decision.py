"""Decides for `/filter`: the pod's node, or why there is none, and the words for its events."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from proto.extender import ExtenderArgs, FilterResult
from proto.kubernetes.objects import Node, Notice, Pod
from scheduler_ext.capacity.nearest import Refusing, by_reason, on_nodes
from scheduler_ext.cluster.events import Decided, FilterBegan, PodRefused, RoomsGivenUp, TimePassed
from scheduler_ext.cluster.gangs import Gang, MissingMember
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.decide.decision import NodeChoice, choice_of, decide_on_empty
from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.decide.misfit import NodeRefusals, refusals_of
from scheduler_ext.decide.preempt import decide_in_own_room, decide_in_room_of_others
from scheduler_ext.decide.reasons import REMEDIES, Reason
from scheduler_ext.membership import group_of
from scheduler_ext.requests import GpuRequest, RequestSettings, pod_key
from scheduler_ext.settings import FilterReturns, ServeSettings
from scheduler_ext.verbs.group_search import GroupDomains, GroupSearch

MOST_LAPSED = 64
"""Members whose GPUs are searched for again in one request."""
MOST_OFFERED = 32
"""Nodes among which kube-scheduler may choose. The pod's GPUs are held on each of them until it has chosen."""
OFFER_SECONDS = 5.0
"""The time for which they are held. A bind that comes later decides again for its node."""

_TIME_PASSED = TimePassed()
LONGEST_PROBLEM = 256
"""Largest number of characters in a reason for every node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterAnswer:
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


def passed_through(args: ExtenderArgs) -> FilterAnswer:
    """Returns all nodes, for a pod that requests no GPU."""
    return FilterAnswer(result=FilterResult(node_names=args.node_names, nodes=args.nodes))


def refused(problem: str) -> FilterAnswer:
    """Returns an answer without a node, as an error; kube-scheduler tries again later."""
    return FilterAnswer(result=FilterResult(error=problem), problem=problem)


def sent_before(node: str, node_names: Sequence[str]) -> FilterAnswer:
    """Returns the answer for a pod whose Binding to the node was sent: on another node its GPUs would be lost to
    others.
    """
    if node not in node_names:
        return refused(f"the pod's Binding to node {node} may have been written already")
    return FilterAnswer(result=FilterResult(node_names=[node]))


def unresolvable(problem: str, args: ExtenderArgs) -> FilterAnswer:
    """Returns the answer for a pod that no node will ever fit as it is written: it waits until it is changed.

    An error would make kube-scheduler try again and again. If each node refuses the pod, it waits until something
    changes (determineSchedulingHintForInFlightPod of its queue). A question about given nodes has no events.
    """
    names = args.node_names or [node.metadata.name for node in args.nodes or ()]
    result = FilterResult(failed_and_unresolvable_nodes=dict.fromkeys(names, problem[:LONGEST_PROBLEM]))
    return FilterAnswer(result=result, problem=problem if args.nodes is None else "")


def no_node(request: GpuRequest, choice: NodeChoice, candidates: int) -> FilterAnswer:
    """Returns the answer without a node. It has the nodes on which evicting other pods would not help apart from the
    others.
    """
    result = FilterResult(error=choice.error)
    if not choice.error:
        result = FilterResult(failed_nodes=choice.failed, failed_and_unresolvable_nodes=choice.unresolvable)
    return FilterAnswer(result=result, choice=choice, candidates=candidates, request=request)


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


@dataclass(frozen=True, slots=True)
class FilterDecision:
    """Decides for pods of one cluster. The best `most` of the nodes that fit are offered; the pod's GPUs are reserved
    on each until its bind names one, for at most `lease_seconds`.
    """

    index: NodeIndex
    cluster: Cluster
    lease_seconds: float
    most: int = 1
    prepared: bool = False
    """True if a search in `index` precedes each decision."""

    def reserve(self, pod: Pod, request: GpuRequest, node_names: Sequence[str], now: float) -> FilterAnswer:
        """Decides among `node_names`; the result replaces the pod's reservations. `now` is in monotonic seconds.

        Nothing is awaited between the decision and the reservation, so two pods never get the same share.
        """
        cluster = self.cluster
        cluster.apply(_TIME_PASSED, now)
        if sent_to := cluster.ledger.records.sent_to(request.uid):
            return sent_before(sent_to, node_names)
        group = group_of(pod)
        gang = cluster.gang_of(pod) if group else None
        cluster.apply(FilterBegan(pod, node_names, 0 if gang is None else gang.needed), now)
        crowded, closed = self._closed(pod, node_names)
        names = node_names
        if crowded or closed:
            names = [name for name in node_names if name not in crowded and name not in closed]
        until = now + cluster.ledger.groups.lease_seconds(pod, self.lease_seconds)
        if lost := self._lost_member(pod, now, until) if group else "":
            choice = NodeChoice(node=None, unresolvable=dict.fromkeys(names, f"{Reason.GROUP_MEMBER_LOST}({lost})"))
        elif node_names and not names:
            choice = NodeChoice(node=None)
        else:
            choice = self._decided(pod, request, gang, names, now=now, until=until)
        if choice.node is None:
            cluster.apply(PodRefused(pod, request), now)
            if crowded or closed:
                failed, unresolvable = {**choice.failed, **crowded}, {**choice.unresolvable, **closed}
                choice = replace(choice, failed=failed, unresolvable=unresolvable)
            return no_node(request, choice, len(node_names))
        # The members of a group are placed together: another node may be in another domain.
        most = 1 if gang is not None or (group and request.wish is not None) else self.most
        elsewhere = cluster.ledger.records.reserved(request.uid)
        others = {
            **(elsewhere.decided if elsewhere is not None else {}),
            **self.index.others(request, names, choice.node, most - 1),
        }
        others.pop(choice.node, None)
        cluster.apply(Decided(pod_key(pod), pod, choice.node, choice.shares, until, others, request), now)
        offered = [choice.node] if most == 1 else [name for name in names if name == choice.node or name in others]
        result = FilterResult(node_names=offered)
        # In a group with domains kube-scheduler may bind the pod elsewhere, without another question.
        offers = most > 1 or pod.spec.scheduling_group is not None
        return FilterAnswer(result=result, choice=choice, candidates=len(node_names), offers=offers, request=request)

    def _closed(self, pod: Pod, node_names: Sequence[str]) -> NodeRefusals:
        """Returns the nodes where the pod cannot go whatever GPUs are free: those whose kubelets would refuse it, and,
        as unresolvable, those that are closed to it.
        """
        cluster = self.cluster
        crowded = cluster.ledger.kubelet.refusing(pod, node_names)
        if crowded:
            crowded = {name: f"{Reason.TOTAL_EXCEEDED}({crowded[name]})" for name in node_names if name in crowded}
        closed = cluster.closed_to(pod)
        if closed:
            closed = {name: closed[name] for name in node_names if name in closed and name not in crowded}
        return NodeRefusals(crowded, closed)

    def _decided(
        self, pod: Pod, request: GpuRequest, gang: Gang | None, node_names: Sequence[str], *, now: float, until: float
    ) -> NodeChoice:
        """Decides for the pod with its group, or alone."""
        if group_of(pod):
            search = GroupSearch(
                cluster=self.cluster,
                domains=GroupDomains(self.index, self.cluster.requests.topology_levels),
                chosen=self._anywhere,
                member=MissingMember(uid=request.uid, pod=pod, request=request),
                node_names=node_names,
                now=now,
                until=until,
            )
            with_group = search.decide(gang)
            if with_group is not None:
                return with_group
        return self._anywhere(request, pod.spec.priority or 0, node_names, now)

    def _anywhere(self, request: GpuRequest, priority: int, node_names: Collection[str], now: float) -> NodeChoice:
        """Returns the best node. A node whose lock is held for long comes last."""
        free = self.cluster.pods.not_held(node_names, now)
        choice = self._chosen(request, priority, free, now)
        if choice.node is None and len(free) < len(node_names):
            choice = self._chosen(request, priority, node_names, now)
        return choice

    def _lost_member(self, pod: Pod, now: float, until: float) -> str:
        """Reserves again for waiting members whose lease has ended. Returns the name of one that can no longer get its
        GPUs; empty if all have theirs.

        Otherwise kube-scheduler would bind the group without that member.
        """
        for number, (uid, node, (member, request)) in enumerate(self.cluster.ledger.groups.lapsed(pod)):
            again = self.index.choose(request, [node])
            if again.node is None or number >= MOST_LAPSED:
                return member.metadata.name
            self.cluster.apply(Decided(uid, member, again.node, again.shares, until, request=request), now)
        return ""

    def _chosen(self, request: GpuRequest, priority: int, node_names: Collection[str], now: float) -> NodeChoice:
        """Returns a node where room is kept for the pod, else the best node. If it fits nowhere, room kept for lower
        priorities is given up for it.
        """
        ledger = self.cluster.ledger
        room = ledger.records.kept(request.uid)
        own = None if room is None else decide_in_own_room(ledger, room.node, request, priority, node_names)
        if own is not None:
            return choice_of(own)
        choice = self.index.choose(request, node_names, prepared=self.prepared)
        if choice.node is None and not choice.error:
            taken = decide_in_room_of_others(ledger, request, priority, node_names)
            if taken is not None:
                self.cluster.apply(RoomsGivenUp(taken.uids), now)
                return choice_of(taken.decision)
        return choice


def live_decision(index: NodeIndex, cluster: Cluster, settings: ServeSettings) -> FilterDecision:
    """Returns the decision in use: a search precedes it."""
    lease_seconds = settings.reservation_lease_seconds
    if settings.filter_returns is FilterReturns.ALL:
        return FilterDecision(index, cluster, min(lease_seconds, OFFER_SECONDS), MOST_OFFERED, prepared=True)
    return FilterDecision(index, cluster, lease_seconds, prepared=True)


def simulate(request: GpuRequest, nodes: Sequence[Node], settings: RequestSettings) -> FilterResult:
    """Returns all given nodes that would fit if nothing ran on them. Reserves nothing."""
    decision = decide_on_empty(request, nodes, settings)
    if decision.error:
        return FilterResult(error=decision.error)
    fitting = [node for node in nodes if node.metadata.name in decision.fits]
    refusals = refusals_of(decision.misfits)
    return FilterResult(
        nodes=fitting, failed_nodes=refusals.failed, failed_and_unresolvable_nodes=refusals.unresolvable
    )
