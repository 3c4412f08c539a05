"""Answers `/preempt`: which evictions would get the pod its GPUs."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace

from proto.extender import NodeVictims, PreemptionArgs, decode_preemption_args, encode_preemption_result
from proto.kubernetes.objects import Pod
from scheduler_ext.cluster.events import Proposed, TimePassed
from scheduler_ext.cluster.pod_index import pod_name
from scheduler_ext.decide.effort import Effort, SteppedSearch, within
from scheduler_ext.decide.preempt import EvictionTrial, GpuHolder, by_importance, gpu_holders, victims
from scheduler_ext.http.messages import HttpAnswer, HttpRequest
from scheduler_ext.requests import GpuRequest, RequestError, read_request
from scheduler_ext.verbs.answer_log import AnswerLog, AnswerOutcome
from scheduler_ext.verbs.live_cluster import LiveCluster
from scheduler_ext.verbs.readiness import VerbReadiness
from scheduler_ext.verbs.turns import giving_way

MOST_EFFORT = 50_000
"""The most effort, as `Effort` counts it, for one answer: about 100 ms. On nodes left out, evicting counts as no help.
"""


class Preempt:
    """The verb: it answers with the smallest evictions, of those that kube-scheduler proposes or of others."""

    def __init__(self, *, cluster: LiveCluster, readiness: VerbReadiness, log: AnswerLog) -> None:
        self._live = cluster
        self._cluster = cluster.state
        self._readiness = readiness
        self._log = log

    async def answer(self, message: HttpRequest) -> HttpAnswer:
        began = self._log.now()
        args = decode_preemption_args(message.body)
        chosen = await self._chosen(args)
        self._log.answered("preempt", AnswerOutcome.OK if chosen else AnswerOutcome.REFUSED, began)
        words = f"it helps on {len(chosen)} of {len(args.victims)} nodes"
        self._log.trace("preempt", pod_name(args.pod), began, words)
        return HttpAnswer(encode_preemption_result(chosen))

    async def _chosen(self, args: PreemptionArgs) -> Mapping[str, NodeVictims]:
        try:
            request = read_request(args.pod, self._cluster.requests)
        except RequestError:
            return {}
        if request is None:
            return args.victims
        if await self._readiness.wait():
            return {}
        nomination = self._cluster.nominations.of(request.uid)
        # Without knowing the budgets, or a second time for one pod, evicting would be wrong.
        if not self._cluster.budgets.known or (nomination is not None and nomination.ours):
            return {}
        self._live.apply(TimePassed())
        chosen = await self._helpful(args.pod, request, args.victims)
        self._live.apply(Proposed(args.pod, {node: each.uids for node, each in chosen.items()}))
        return chosen

    async def _helpful(
        self, pod: Pod, request: GpuRequest, proposed: Mapping[str, NodeVictims]
    ) -> Mapping[str, NodeVictims]:
        """Returns the victims on each node where evictions help."""
        cluster, found, effort = self._cluster, dict[str, NodeVictims](), Effort()
        for node, of_others in proposed.items():
            if effort.made >= MOST_EFFORT:
                break
            there = gpu_holders(cluster.pods, node)
            alone = cluster.ledger.alone(node, request.namespace)
            trial = EvictionTrial(alone, request, pod.spec.priority or 0, effort)
            search = sufficient(trial, there, of_others, cluster.budgets.violating)
            chosen = await giving_way(within(search, effort, MOST_EFFORT - effort.made))
            if chosen is not None and not self._refused_without(pod, node, there, chosen.uids):
                found[node] = chosen
        return found

    def _refused_without(self, pod: Pod, node: str, there: Sequence[GpuHolder], victims: Sequence[str]) -> bool:
        """Returns whether kubelet would refuse the pod even after these evictions, so that they would not help."""
        leaving = (holder.uid for holder in there if holder.leaving)
        return node in self._cluster.ledger.kubelet.refusing(pod, [node], {*victims, *leaving})


def sufficient(
    trial: EvictionTrial,
    holders: Sequence[GpuHolder],
    proposed: NodeVictims,
    violating: Callable[[Iterable[GpuHolder]], Set[str]],
) -> SteppedSearch[NodeVictims | None]:
    """Returns the pods to evict from the trial's node so that the pod gets its GPUs; None if that does not help or no
    eviction is needed.

    `holders` are the node's pods that request GPUs. kube-scheduler has already counted what budgets lose by pods
    without GPUs.
    """
    chosen = yield from victims(trial.priority, frozenset(proposed.uids), holders, trial.fits, violating)
    # kube-scheduler treats a node without victims as an error (callExtenders of its preemption framework).
    if not chosen:
        return None
    uids = by_importance(proposed.uids, chosen, holders)
    against = violating(each for each in _in_order(uids, holders) if not each.leaving)
    violations = max(proposed.pdb_violations, 0) + len(against - violating(_in_order(proposed.uids, holders)))
    return replace(proposed, uids=uids, pdb_violations=violations)


def _in_order(uids: Iterable[str], holders: Iterable[GpuHolder]) -> list[GpuHolder]:
    known = {holder.uid: holder for holder in holders}
    return [known[uid] for uid in uids if uid in known]
