"""What kube-scheduler is answered: in time, by the leader, and from a cache that has seen everything."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from proto.extender import ExtenderArgs, FilterResult, HostPriority, NodeVictims, PreemptionArgs
from proto.kubernetes.notices import Notice
from proto.kubernetes.objects import Pod
from scheduler_ext.apiserver import ClusterWatch
from scheduler_ext.binding.advising import holders, preempt, rank, rank_simulated
from scheduler_ext.binding.bind import Binder
from scheduler_ext.binding.filtering import (
    Filtered,
    hopeless,
    kept,
    passed_through,
    refused,
    reserve,
    simulate,
)
from scheduler_ext.binding.nominations import Nominations
from scheduler_ext.binding.preempting import Preempting, giving_way
from scheduler_ext.binding.view import View, pod_name
from scheduler_ext.cluster.budgets import Budgets
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.leadership.lease import Leadership
from scheduler_ext.requests import GpuRequest, RequestError, RequestSettings, pod_key, read_request
from scheduler_ext.scheduling.candidates import Candidates
from scheduler_ext.scheduling.effort import Effort
from scheduler_ext.scheduling.journal import Entry, Journal
from scheduler_ext.scheduling.preempt import Holder, within
from scheduler_ext.scheduling.waiting import WaitingPods
from scheduler_ext.settings import FilterReturns, ServeSettings
from scheduler_ext.turns import Turns

MOST_OFFERED = 32
"""Nodes among which kube-scheduler may choose: on each of them the pod's GPUs are held until it has chosen."""
OFFER_SECONDS = 5.0
"""For which they are; a bind that comes later decides again for its node."""

MOST_EFFORT = 50_000
"""As `Effort` counts it, for one answer about evictions: some 100 ms. On nodes left out evicting does not help."""


class Answering:
    """All state of one extender, and the order in which an answer comes about."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        candidates: Candidates,
        view: View,
        budgets: Budgets,
        nominations: Nominations,
        preempting: Preempting,
        watch: ClusterWatch,
        leadership: Leadership,
        binder: Binder,
        waiting: WaitingPods,
        journal: Journal,
        requests: RequestSettings,
        settings: ServeSettings,
        now: Callable[[], datetime],
        monotonic: Callable[[], float],
    ) -> None:
        self._ledger = ledger
        self._view = view
        self._budgets = budgets
        self._nominations = nominations
        self._preempting = preempting
        self._candidates = candidates
        self._watch = watch
        self._leadership = leadership
        self._binder = binder
        self._waiting = waiting
        self._journal = journal
        self._requests = requests
        self._settings = settings
        self._now = now
        self._monotonic = monotonic
        self._turns = Turns(monotonic)

    async def not_ready(self) -> str:
        """Waits until decisions can be taken here; after a while one sentence why they cannot, else empty."""
        seconds = self._settings.sync_wait_seconds
        until = self._monotonic() + seconds
        if await self._leadership.wait(seconds):
            await self._watch.wait_until_synced(max(until - self._monotonic(), 0))
        return self.problem()

    def problem(self) -> str:
        """One sentence why no decision can be taken here now; empty when one can."""
        problem = self._leadership.problem()
        if not problem and (missing := self._watch.missing()):
            return f"not ready: the API server has not listed {', '.join(missing)} yet"
        return problem

    async def filter(self, args: ExtenderArgs) -> Filtered:
        try:
            wanted = read_request(args.pod, self._requests)
        except RequestError as error:
            self._ledger.refuse(args.pod, self._monotonic())
            return hopeless(str(error), args)
        if args.nodes is None and args.node_names is None:
            return Filtered(result=FilterResult(error="neither Nodes nor NodeNames are given"))
        if wanted is None:
            return passed_through(args)
        if args.nodes is not None:
            return Filtered(result=simulate(wanted, args.nodes, self._requests))
        return await self._live(args.pod, wanted, args.node_names or [])

    async def prioritize(self, args: ExtenderArgs) -> Sequence[HostPriority]:
        """Nothing to prefer is no error: kube-scheduler goes by its own scores then."""
        names = args.node_names or [node.metadata.name for node in args.nodes or ()]
        try:
            wanted = read_request(args.pod, self._requests)
        except RequestError:
            wanted = None
        if wanted is None or (args.nodes is None and await self.not_ready()):
            return [HostPriority(name, 0) for name in names]
        if args.nodes is not None:
            return rank_simulated(wanted, args.nodes, self._requests)
        await self._prepare(wanted, names, every=True)
        return rank(self._candidates, self._ledger, wanted, names)

    async def preempt(self, args: PreemptionArgs) -> Mapping[str, NodeVictims]:
        try:
            wanted = read_request(args.pod, self._requests)
        except RequestError:
            return {}
        if wanted is None:
            return args.victims
        if await self.not_ready():
            return {}
        nomination = self._nominations.of(wanted.uid)
        # Evicting without knowing the budgets, or a second time for one pod, would be wrong.
        if not self._budgets.known or (nomination is not None and nomination.ours):
            return {}
        self._ledger.expire(self._monotonic())
        priority = args.pod.spec.priority or 0
        found: dict[str, NodeVictims] = {}
        effort = Effort()
        for node, proposed in args.victims.items():
            if effort.made >= MOST_EFFORT:
                break
            there = holders(self._view, node)
            asked = self._ledger, self._budgets, there, wanted
            search = preempt(*asked, priority=priority, node=node, proposed=proposed, effort=effort)
            chosen = await giving_way(within(search, effort, MOST_EFFORT - effort.made))
            if chosen is not None and not self._refused_without(args.pod, node, there, chosen.uids):
                found[node] = chosen
        self._nominations.propose(args.pod, {node: each.uids for node, each in found.items()})
        return found

    def _refused_without(self, pod: Pod, node: str, there: Sequence[Holder], victims: Sequence[str]) -> bool:
        """Whether kubelet would refuse the pod even then: evicting them would be in vain."""
        leaving = (holder.uid for holder in there if holder.leaving)
        return node in self._ledger.refused_by_kubelet(pod, [node], {*victims, *leaving})

    async def _live(self, pod: Pod, wanted: GpuRequest, node_names: Sequence[str]) -> Filtered:
        if not await self.not_ready():
            await self._prepare(wanted, node_names)
        # Nothing is awaited from here to the reservation.
        problem = self.problem()
        if problem:
            return Filtered(result=FilterResult(error=problem))
        if self._binder.is_binding(pod_name(pod)):
            return refused("the pod is being bound at this moment")
        sent_to = self._binder.sent_to(wanted.uid)
        if sent_to:
            return kept(sent_to, node_names)
        answer = self._decided(pod, wanted, node_names)
        self._remember(pod, wanted, answer)
        return answer

    async def _prepare(self, wanted: GpuRequest, node_names: Sequence[str], *, every: bool = False) -> None:
        """So that the decision takes no time then: between the steps of a long search others get their answers."""
        await self._turns.take(wanted.namespace, self._candidates.preparing(wanted, node_names, every=every))

    def _decided(self, pod: Pod, wanted: GpuRequest, node_names: Sequence[str]) -> Filtered:
        offers = self._settings.filter_returns is FilterReturns.ALL
        lease_seconds = self._settings.reservation_lease_seconds
        return reserve(
            self._candidates,
            self._ledger,
            pod,
            wanted,
            node_names,
            now=self._monotonic(),
            lease_seconds=min(lease_seconds, OFFER_SECONDS) if offers else lease_seconds,
            most=MOST_OFFERED if offers else 1,
            prepared=True,
        )

    def _remember(self, pod: Pod, wanted: GpuRequest, answer: Filtered) -> None:
        if answer.result.node_names:
            self._waiting.settled(wanted.uid)
        else:
            self._waiting.refused(wanted, pod.spec.priority or 0, self._monotonic())
            self._preempting.refused(pod, wanted, answer.result.failed_nodes or ())

    def afterwards(self, pod: Pod, answer: Filtered) -> Sequence[Notice]:
        """What `/filter` leaves to do once its answer is given; the notices are for the pod's events."""
        notices = answer.notices()
        if answer.choice is not None:
            offered = len(answer.result.node_names or ()) if answer.offers else 0
            said = f"{offered} nodes fit, kube-scheduler chooses" if offered else notices[-1].message
            self._journal.write(pod_key(pod), Entry(at=self._now().timestamp(), said=said))
            self._candidates.look_ahead()
        return notices
