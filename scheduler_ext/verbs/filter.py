"""Answers `/filter`: the best node or a few of them, with the GPUs reserved before the next request is answered."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from proto.extender import ExtenderArgs, FilterResult, decode_extender_args, encode_filter_result
from proto.kubernetes.objects import Node, Notice, Pod
from scheduler_ext.cluster.events import (
    Asked,
    Decided,
    Explained,
    GroupUndone,
    PodRefused,
    RoomsGivenUp,
    TimePassed,
)
from scheduler_ext.cluster.gangs import Gang, MissingMember
from scheduler_ext.cluster.pod_index import PodName, pod_name
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.decide.decision import NodeChoice, choice_of, decide_on_empty
from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.decide.misfit import NodeRefusals, refusals_of
from scheduler_ext.decide.preempt import decide_in_own_room, decide_in_room_of_others
from scheduler_ext.decide.reasons import Reason
from scheduler_ext.http.messages import HttpAnswer, HttpRequest
from scheduler_ext.membership import group_of
from scheduler_ext.requests import GpuRequest, RequestError, RequestSettings, pod_key, read_request
from scheduler_ext.settings import FilterReturns, ServeSettings
from scheduler_ext.verbs.answer_log import AnswerLog, AnswerOutcome
from scheduler_ext.verbs.filter_answer import Filtered, kept, nowhere, passed_through, refused, unresolvable
from scheduler_ext.verbs.group_search import GroupDomains, GroupSearch
from scheduler_ext.verbs.readiness import VerbReadiness

MOST_LAPSED = 64
"""Members whose GPUs are searched for again in one request."""
MOST_OFFERED = 32
"""Nodes among which kube-scheduler may choose. The pod's GPUs are held on each of them until it has chosen."""
OFFER_SECONDS = 5.0
"""The time for which they are held. A bind that comes later decides again for its node."""

_TIME_PASSED = TimePassed()


class Filter:
    """The verb. `under_way` are the pods that are being bound; `no_room` gets a pod without a node, and the nodes where
    evictions may help.
    """

    def __init__(
        self,
        *,
        decision: "FilterDecision",
        readiness: VerbReadiness,
        under_way: Collection[PodName],
        no_room: Callable[[Pod, GpuRequest, Collection[str]], None],
        log: AnswerLog,
    ) -> None:
        self._decision = decision
        self._cluster = decision.cluster
        self._readiness = readiness
        self._under_way = under_way
        self._no_room = no_room
        self._log = log

    async def answer(self, message: HttpRequest) -> HttpAnswer:
        began = self._log.now()
        args = decode_extender_args(message.body)
        filtered = await self._filtered(args)

        def afterwards() -> None:
            self._record(args.pod, filtered, began)

        return HttpAnswer(encode_filter_result(args.as_written(filtered.result)), afterwards=afterwards)

    async def _filtered(self, args: ExtenderArgs) -> Filtered:
        try:
            request = read_request(args.pod, self._cluster.requests)
        except RequestError as error:
            if args.nodes is None:
                self._cluster.record(PodRefused(args.pod, None), self._log.now())
            return unresolvable(str(error), args)
        if args.nodes is None and args.node_names is None:
            return Filtered(result=FilterResult(error="neither Nodes nor NodeNames are given"))
        if request is None:
            return passed_through(args)
        if args.nodes is not None:
            return Filtered(result=simulate(request, args.nodes, self._cluster.requests))
        node_names = args.node_names or []
        if not await self._readiness.wait():
            rooms = bool(group_of(args.pod)) and (request.wish is not None or self._decision.index.has_domains())
            closed = self._cluster.closed_to(args.pod)
            open_ = [name for name in node_names if name not in closed] if closed else node_names
            await self._readiness.search(request, open_, rooms=rooms)
        return self._decided(args.pod, request, node_names)

    def _decided(self, pod: Pod, request: GpuRequest, node_names: Sequence[str]) -> Filtered:
        """Nothing is awaited from the last look at what is known to the reservation."""
        problem = self._readiness.problem()
        if problem:
            return Filtered(result=FilterResult(error=problem))
        if pod_name(pod) in self._under_way:
            return refused("the pod is being bound at this moment")
        filtered = self._decision.reserve(pod, request, node_names, self._log.now())
        if filtered.choice is not None and not filtered.result.node_names:
            self._no_room(pod, request, filtered.result.failed_nodes or ())
        return filtered

    def _record(self, pod: Pod, filtered: Filtered, began: float) -> None:
        """Does what can be done after the answer is sent."""
        result, notices = filtered.result, filtered.notices()
        fits = bool(result.node_names or result.nodes)
        outcome = AnswerOutcome.OK if fits else AnswerOutcome.FAILED if result.error else AnswerOutcome.REFUSED
        self._log.answered("filter", outcome, began)
        if outcome is AnswerOutcome.REFUSED and filtered.choice is not None:
            self._log.misfits(result)
        if filtered.choice is not None:
            offered = len(result.node_names or ()) if filtered.offers else 0
            words = f"{offered} nodes fit, kube-scheduler chooses" if offered else notices[-1].message
            self._cluster.record(Explained(pod_key(pod), words), self._log.now())
            self._decision.index.look_ahead()
        self._log.events(pod.reference, notices)
        gang = self._cluster.gang_of(pod) if filtered.choice is not None and filtered.choice.group else None
        if filtered.choice is not None and gang is not None and gang.reference is not None:
            self._log.events(gang.reference, [Notice(reason="GroupDoesNotFit", message=filtered.choice.group)])
        fitting = result.node_names if result.node_names is not None else result.nodes
        words = (
            "; ".join(notice.message for notice in notices) or result.error or f"{len(fitting or ())} nodes are offered"
        )
        self._log.trace("filter", pod_name(pod), began, words)


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

    def reserve(self, pod: Pod, request: GpuRequest, node_names: Sequence[str], now: float) -> Filtered:
        """Decides among `node_names`; the result replaces the pod's reservations. `now` is in monotonic seconds.

        Nothing is awaited between the decision and the reservation, so two pods never get the same share.
        """
        cluster = self.cluster
        cluster.record(_TIME_PASSED, now)
        if sent_to := cluster.ledger.records.sent_to(request.uid):
            return kept(sent_to, node_names)
        group = group_of(pod)
        gang = cluster.gang_of(pod) if group else None
        cluster.record(Asked(pod, node_names, 0 if gang is None else gang.needed), now)
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
            cluster.record(PodRefused(pod, request), now)
            if crowded or closed:
                failed, unresolvable = {**choice.failed, **crowded}, {**choice.unresolvable, **closed}
                choice = replace(choice, failed=failed, unresolvable=unresolvable)
            return nowhere(request, choice, len(node_names))
        # The members of a group are placed together: another node may be in another domain.
        most = 1 if gang is not None or (group and request.wish is not None) else self.most
        elsewhere = cluster.ledger.records.reserved(request.uid)
        others = {
            **(elsewhere.decided if elsewhere is not None else {}),
            **self.index.others(request, names, choice.node, most - 1),
        }
        others.pop(choice.node, None)
        cluster.record(Decided(pod_key(pod), pod, choice.node, choice.shares, until, others, request), now)
        offered = [choice.node] if most == 1 else [name for name in names if name == choice.node or name in others]
        result = FilterResult(node_names=offered)
        # In a group with domains kube-scheduler may bind the pod elsewhere, without another question.
        offers = most > 1 or pod.spec.scheduling_group is not None
        return Filtered(result=result, choice=choice, candidates=len(node_names), offers=offers, request=request)

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
            asked = MissingMember(uid=request.uid, pod=pod, request=request)
            domains = GroupDomains(self.index, self.cluster.requests.topology_levels)
            search = GroupSearch(self.cluster, domains, self._anywhere)
            search.end_split(asked, node_names, now)
            ahead = self._decided_ahead(asked, node_names, now)
            with_group = ahead or self._of_group(search, gang, asked, node_names, now=now, until=until)
            if with_group is not None:
                return with_group
        return self._anywhere(request, pod.spec.priority or 0, node_names, now)

    def _decided_ahead(self, asked: MissingMember, node_names: Sequence[str], now: float) -> NodeChoice | None:
        """Returns what was decided for the pod with another member of its group; None if nothing was."""
        ahead = self.cluster.ledger.groups.ahead(asked.pod, node_names)
        if ahead is None:
            return None
        usage = self.cluster.ledger.nodes.usage(ahead.node)
        if ahead.uid == asked.uid and usage is not None and usage.offers(ahead.shares):
            return NodeChoice(node=ahead.node, shares=ahead.shares)
        # A GPU went out of service since, or it is the place of a pod that did not exist. This one may need another.
        self.cluster.record(GroupUndone((ahead.uid,), ()), now)
        choice = self._chosen(asked.request, asked.pod.spec.priority or 0, [ahead.node], now)
        return None if choice.node is None else choice

    def _of_group(
        self,
        search: GroupSearch,
        gang: Gang | None,
        asked: MissingMember,
        node_names: Sequence[str],
        *,
        now: float,
        until: float,
    ) -> NodeChoice | None:
        """Decides for all members that are missing, or for one more near the others. None for a pod that policies place
        alone.
        """
        if gang is None and asked.request.wish is None:
            return None
        placed = self.cluster.ledger.groups.placed(asked.pod, node_names)
        if gang is None or gang.needed - len(placed) < 2:
            return search.near(asked, node_names, placed, now)
        return search.together(gang, asked, node_names, placed, now=now, until=until)

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
            self.cluster.record(Decided(uid, member, again.node, again.shares, until, request=request), now)
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
                self.cluster.record(RoomsGivenUp(taken.uids), now)
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
