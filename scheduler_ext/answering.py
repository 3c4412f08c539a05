"""Answers kube-scheduler: in time, only as the leader, and from a cache that has seen everything."""

from collections.abc import Mapping, Sequence

from proto.extender import ExtenderArgs, FilterResult, HostPriority, NodeVictims, PreemptionArgs
from proto.kubernetes.notices import Notice
from proto.kubernetes.objects import Pod
from proto.kubernetes.requests import host_requested
from scheduler_ext.apiserver import ClusterWatch
from scheduler_ext.cluster.events import Explained, Proposed, Refused, TimePassed
from scheduler_ext.cluster.pod_index import pod_name
from scheduler_ext.decide.effort import Effort
from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.decide.preempt import GpuHolder, within
from scheduler_ext.leadership.lease import Leadership
from scheduler_ext.policies import NodePolicy
from scheduler_ext.requests import GpuRequest, RequestError, gpu_count, pod_key, read_request
from scheduler_ext.settings import FilterReturns, ServeSettings
from scheduler_ext.verbs.binder import Binder
from scheduler_ext.verbs.evictor import Evictor, giving_way
from scheduler_ext.verbs.filter import (
    Filtered,
    kept,
    passed_through,
    refused,
    reserve,
    simulate,
    unresolvable,
)
from scheduler_ext.verbs.live_cluster import LiveCluster
from scheduler_ext.verbs.preempt import holders, preempt
from scheduler_ext.verbs.prioritize import rank, rank_simulated, rank_without_gpus
from scheduler_ext.verbs.turns import Turns

MOST_OFFERED = 32
"""Nodes among which kube-scheduler may choose. The pod's GPUs are held on each of them until it has chosen."""
OFFER_SECONDS = 5.0
"""The time for which they are held. A bind that comes later decides again for its node."""

MOST_EFFORT = 50_000
"""The most effort, as `Effort` counts it, for one answer about evictions: about 100 ms. On nodes left out, evicting
counts as no help.
"""


class Answering:
    """Takes each question of kube-scheduler to its answer."""

    def __init__(
        self,
        *,
        cluster: LiveCluster,
        index: NodeIndex,
        preempting: Evictor,
        watch: ClusterWatch,
        leadership: Leadership,
        binder: Binder,
        settings: ServeSettings,
    ) -> None:
        self._cluster = cluster
        self._state = cluster.state
        self._requests = cluster.state.requests
        self._preempting = preempting
        self._index = index
        self._watch = watch
        self._leadership = leadership
        self._binder = binder
        self._settings = settings
        self._monotonic = cluster.monotonic
        self._turns = Turns(cluster.monotonic)

    async def end(self) -> None:
        await self._turns.end()

    async def not_ready(self) -> str:
        """Waits until decisions are possible here. Returns a sentence if they are not in time, else an empty text."""
        seconds = self._settings.sync_wait_seconds
        until = self._monotonic() + seconds
        if await self._leadership.wait(seconds):
            await self._watch.wait_until_synced(max(until - self._monotonic(), 0))
        return self.problem()

    def problem(self) -> str:
        """Returns why no decision is possible here now, in one sentence; empty if one is."""
        problem = self._leadership.problem()
        if not problem and (missing := self._watch.missing()):
            return f"not ready: the API server has not listed {', '.join(missing)} yet"
        return problem

    async def filter(self, args: ExtenderArgs) -> Filtered:
        try:
            wanted = read_request(args.pod, self._requests)
        except RequestError as error:
            self._cluster.apply(Refused(args.pod, None))
            return unresolvable(str(error), args)
        if args.nodes is None and args.node_names is None:
            return Filtered(result=FilterResult(error="neither Nodes nor NodeNames are given"))
        if wanted is None:
            return passed_through(args)
        if args.nodes is not None:
            return Filtered(result=simulate(wanted, args.nodes, self._requests))
        return await self._live(args.pod, wanted, args.node_names or [])

    async def prioritize(self, args: ExtenderArgs) -> Sequence[HostPriority]:
        """An empty preference is no error: kube-scheduler then uses its own scores."""
        names = _named(args)
        try:
            wanted = read_request(args.pod, self._requests)
        except RequestError:
            wanted = None
        if wanted is None or (args.nodes is None and await self.not_ready()):
            return [HostPriority(name, 0) for name in names]
        if args.nodes is not None:
            return rank_simulated(wanted, args.nodes, self._requests)
        await self._prepare(wanted, names, every=True)
        return rank(self._index, self._state.ledger, wanted, names)

    async def prioritize_without_gpus(self, args: ExtenderArgs) -> Sequence[HostPriority]:
        """Returns scores for a pod that requests no GPU, if the node policy is `fgd`. Else all nodes get 0."""
        names = _named(args)
        asks = any(gpu_count(container, self._requests.names) for container in args.pod.all_containers)
        if asks or self._requests.node_policy is not NodePolicy.FGD or await self.not_ready():
            return [HostPriority(name, 0) for name in names]
        return await giving_way(rank_without_gpus(self._index, host_requested(args.pod), names))

    async def preempt(self, args: PreemptionArgs) -> Mapping[str, NodeVictims]:
        try:
            wanted = read_request(args.pod, self._requests)
        except RequestError:
            return {}
        if wanted is None:
            return args.victims
        if await self.not_ready():
            return {}
        nomination = self._state.nominations.of(wanted.uid)
        # Without knowing the budgets, or a second time for one pod, evicting would be wrong.
        if not self._state.budgets.known or (nomination is not None and nomination.ours):
            return {}
        self._cluster.apply(TimePassed())
        priority = args.pod.spec.priority or 0
        found: dict[str, NodeVictims] = {}
        effort = Effort()
        for node, proposed in args.victims.items():
            if effort.made >= MOST_EFFORT:
                break
            there = holders(self._state.pods, node)
            asked = self._state.ledger, self._state.budgets, there, wanted
            search = preempt(*asked, priority=priority, node=node, proposed=proposed, effort=effort)
            chosen = await giving_way(within(search, effort, MOST_EFFORT - effort.made))
            if chosen is not None and not self._refused_without(args.pod, node, there, chosen.uids):
                found[node] = chosen
        self._cluster.apply(Proposed(args.pod, {node: each.uids for node, each in found.items()}))
        return found

    def _refused_without(self, pod: Pod, node: str, there: Sequence[GpuHolder], victims: Sequence[str]) -> bool:
        """Returns whether kubelet would refuse the pod even after these evictions, so that they would not help."""
        leaving = (holder.uid for holder in there if holder.leaving)
        return node in self._state.ledger.kubelet.refusing(pod, [node], {*victims, *leaving})

    async def _live(self, pod: Pod, wanted: GpuRequest, node_names: Sequence[str]) -> Filtered:
        if not await self.not_ready():
            await self._prepare(wanted, node_names)
        # Nothing is awaited from here to the reservation.
        problem = self.problem()
        if problem:
            return Filtered(result=FilterResult(error=problem))
        if self._binder.is_binding(pod_name(pod)):
            return refused("the pod is being bound at this moment")
        self._cluster.apply(TimePassed())
        sent_to = self._state.ledger.records.sent_to(wanted.uid)
        if sent_to:
            return kept(sent_to, node_names)
        answer = self._decided(pod, wanted, node_names)
        if not answer.result.node_names:
            self._preempting.refused(pod, wanted, answer.result.failed_nodes or ())
        return answer

    async def _prepare(self, wanted: GpuRequest, node_names: Sequence[str], *, every: bool = False) -> None:
        """Searches in advance, so that the decision itself is quick. Between the steps of a long search others get
        their answers.
        """
        await self._turns.take(wanted.namespace, self._index.prepare(wanted, node_names, every=every))

    def _decided(self, pod: Pod, wanted: GpuRequest, node_names: Sequence[str]) -> Filtered:
        offers = self._settings.filter_returns is FilterReturns.ALL
        lease_seconds = self._settings.reservation_lease_seconds
        return reserve(
            self._index,
            self._state,
            pod,
            wanted,
            node_names,
            now=self._monotonic(),
            lease_seconds=min(lease_seconds, OFFER_SECONDS) if offers else lease_seconds,
            most=MOST_OFFERED if offers else 1,
            prepared=True,
        )

    def afterwards(self, pod: Pod, answer: Filtered) -> Sequence[Notice]:
        """The work that `/filter` does after its answer is sent. The notices become events of the pod."""
        notices = answer.notices()
        if answer.choice is not None:
            offered = len(answer.result.node_names or ()) if answer.offers else 0
            said = f"{offered} nodes fit, kube-scheduler chooses" if offered else notices[-1].message
            self._cluster.apply(Explained(pod_key(pod), said))
            self._index.look_ahead()
        return notices


def _named(args: ExtenderArgs) -> list[str]:
    """Returns the nodes of the request, each once: a score costs time."""
    return list(dict.fromkeys(args.node_names or [node.metadata.name for node in args.nodes or ()]))
