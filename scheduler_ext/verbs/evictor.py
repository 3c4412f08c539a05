"""Evicts pods of lower priority for a pod that lacks only GPUs, where kube-scheduler cannot.

kube-scheduler looks for victims with its own filters only. These know no GPU memory and pass without any victim, so it
gives up before it calls an extender. All evictions use the Eviction API, so no budget is overridden.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiError, ApiUnreachable, Conflict, NotFound
from proto.kubernetes.objects import Notice, Pod
from scheduler_ext.cluster.events import NominationsEnded
from scheduler_ext.cluster.gangs import MissingMember
from scheduler_ext.cluster.pod_index import PodName
from scheduler_ext.cluster.waiting_pods import Nomination
from scheduler_ext.decide.effort import Effort, within
from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.decide.preempt import EvictionPlan, EvictionTrial, GpuHolder, gpu_holders, plan_evictions
from scheduler_ext.membership import group_of
from scheduler_ext.requests import GpuRequest
from scheduler_ext.verbs.live_cluster import LiveCluster
from scheduler_ext.verbs.nominated_rooms import keep_room, shorten_taken_rooms
from scheduler_ext.verbs.turns import giving_way

log = logging.getLogger(__name__)

TURN_SECONDS = 1.0
"""The time between two turns; each serves one pod."""
MOST_PODS = 100
"""Pods remembered; beyond this the most important ones."""
MOST_NODES = 100
MOST_EFFORT = 100_000
"""The most effort for one node: about 200 ms, in steps between which others get their answers."""
POLL_SECONDS = 0.3
"""Nodes and seconds per poll for one pod. The next poll continues with the following nodes."""
MOST_MEMBERS = 64
"""No pods are evicted for a group of more missing members."""
FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 300.0
"""Pause between two looks for a pod. It doubles each time that no eviction helps."""
AFTER_EVICTING_SECONDS = 600.0
"""A pod that did not take its room waits for something that we do not know."""
SPARED_SECONDS = 300.0
"""The time for which a pod is left alone after the API server refused its eviction."""
FORGOTTEN_SECONDS = 900.0
"""The time after which a pod is forgotten, like a waiting one: kube-scheduler tries a pod at least every five
minutes.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedPod:
    """A pod that may have others evicted. On `nodes` it lacks only GPUs: kube-scheduler's own filters passed there."""

    pod: Pod
    request: GpuRequest
    priority: int
    nodes: tuple[str, ...]
    since: float
    filtered_at: float
    polls: int = 0
    start: int = 0
    """The position among the nodes where the next poll begins."""
    not_before: float = 0.0

    @property
    def name(self) -> PodName:
        return PodName(namespace=self.request.namespace, name=self.request.pod)


class Evictor:
    """Evicts pods for others, if `serving` is true; kept room is managed in any case."""

    def __init__(
        self,
        *,
        api: ApiServer,
        cluster: LiveCluster,
        index: NodeIndex,
        forbidden: Callable[[], str],
        serving: bool,
    ) -> None:
        """`forbidden` returns why no decision is possible here; empty if one is."""
        self._api = api
        self._live = cluster
        self._cluster = cluster.state
        self._index = index
        self._forbidden = forbidden
        self._serving = serving
        self._monotonic = cluster.monotonic
        self._pods: dict[str, RefusedPod] = {}
        self._spared: dict[str, float] = {}
        """The end of the time for which each pod is left alone, by UID."""
        self._checked = 0
        """Pods whose rooms were checked in this round."""

    def refused(self, pod: Pod, request: GpuRequest, nodes: Iterable[str]) -> None:
        """Records that no node has room for the pod; on these nodes evictions may help. For a member of a group pods
        are evicted only if all of it then fits.
        """
        if not self._serving or pod.spec.preemption_policy == "Never":
            return
        if group_of(pod) and self._cluster.gang_of(pod) is None:
            return
        now, priority, known = self._monotonic(), pod.spec.priority or 0, self._pods.pop(request.uid, None)
        if known is None:
            known = RefusedPod(
                pod=pod, request=request, priority=priority, nodes=(), since=now, filtered_at=now, not_before=now
            )
        if len(self._pods) >= MOST_PODS:
            least = min(self._pods, key=lambda uid: (self._pods[uid].priority, -self._pods[uid].since))
            if self._pods[least].priority >= priority:
                return
            del self._pods[least]
        self._pods[request.uid] = replace(
            known, pod=pod, request=request, priority=priority, nodes=tuple(nodes), filtered_at=now
        )

    async def run(self) -> None:
        while True:
            await asyncio.sleep(TURN_SECONDS)
            self._checked = shorten_taken_rooms(self._cluster, self._checked, self._monotonic())
            if self._forbidden():
                self._pods.clear()
                self._live.apply(NominationsEnded(self._cluster.nominations.ours()))
            elif self._cluster.budgets.known:
                await self._turn()

    async def _turn(self) -> None:
        now = self._monotonic()
        self._spared = {uid: until for uid, until in self._spared.items() if now < until}
        self._pods = {
            uid: pod
            for uid, pod in self._pods.items()
            if now - pod.filtered_at < FORGOTTEN_SECONDS and self._waits(pod)
        }
        due = [pod for pod in self._pods.values() if pod.not_before <= now]
        if due:
            await self._serve(min(due, key=lambda pod: (-pod.priority, pod.since)))

    def _waits(self, pod: RefusedPod) -> bool:
        """Returns whether the pod waits, also with a reservation: if that fails, no new evictions may begin before
        their time.
        """
        entry = self._cluster.pods.pod(pod.name)
        return entry is not None and entry.uid == pod.request.uid and not entry.node and not entry.leaving

    async def _serve(self, pod: RefusedPod) -> None:
        uid, entry = pod.request.uid, self._cluster.pods.pod(pod.name)
        if entry is None:
            return
        pause = min(FIRST_PAUSE_SECONDS * 2.0 ** min(pod.polls, 10), LONGEST_PAUSE_SECONDS)
        self._wait(pod, pause)
        cluster = self._cluster
        served = cluster.ledger.records.reserved(uid) is not None or cluster.nominations.of(uid) is not None
        if served or entry.nominated:
            return
        group = group_of(pod.pod)
        members = self._missing(pod) if group else [pod]
        if not members or (not group and not await self._fits_nowhere(pod)):
            return
        plans = await self._plans(members)
        victims = tuple({victim.uid: victim for each in plans for victim in each.victims}.values())
        helps = len(plans) == len(members) and not cluster.budgets.violating(reversed(victims))
        if helps and (victims or not group):
            await self._make_room(pod, members, plans, victims)
        else:
            self._give_up(members)

    async def _fits_nowhere(self, pod: RefusedPod) -> bool:
        """Returns whether the pod fits on no node. One that does only has to be tried again by kube-scheduler."""
        for _ in self._index.prepare(pod.request, pod.nodes, every=True):
            await asyncio.sleep(0)
        return self._index.fits_nowhere(pod.request, pod.nodes, prepared=True)

    def _missing(self, pod: RefusedPod) -> list[RefusedPod]:
        """Returns all members that are missing of the pod's group; none if no room is made for them."""
        gang, settings = self._cluster.gang_of(pod.pod), self._cluster.requests
        if gang is None or not 0 < gang.needed <= MOST_MEMBERS:
            return []
        member = MissingMember(uid=pod.request.uid, pod=pod.pod, request=pod.request)
        found = list(gang.missing(member, (), settings))[: gang.needed]
        members = [replace(pod, pod=each.pod, request=each.own_request) for each in found]
        return members if len(members) == gang.needed else []

    async def _make_room(
        self,
        pod: RefusedPod,
        members: Sequence[RefusedPod],
        plans: Sequence[EvictionPlan],
        victims: Sequence[GpuHolder],
    ) -> None:
        """Evicts the pods of the plans. All rooms are kept before the first eviction, so that nothing that becomes free
        is lost.
        """
        group, nodes = group_of(pod.pod), ", ".join(dict.fromkeys(each.node for each in plans))
        problem = await self._evict(pod, victims, f"group {group}" if group else f"pod {pod.name}")
        if problem:
            self._give_up(members)
        self._wait(pod, FIRST_PAUSE_SECONDS if problem else AFTER_EVICTING_SECONDS)
        gone = ", ".join(f"{each.namespace}/{each.name}" for each in victims) or "pods that end anyway"
        message = (
            f"room is made for group {group} on {nodes}, and kept for its pods: evicted: {gone}"
            if group
            else f"room is made on node {nodes}, and kept for this pod: evicted for it: {gone}"
        )
        log.info("pod %s: %s", pod.name, problem or message)
        notice = Notice(
            reason="PreemptionFailed" if problem else "Preempting", message=problem or message, warning=bool(problem)
        )
        self._live.record_event(pod.name.reference(pod.request.uid), notice)

    def _give_up(self, members: Iterable[RefusedPod]) -> None:
        self._live.apply(NominationsEnded([each.request.uid for each in members]))

    async def _plans(self, members: Sequence[RefusedPod]) -> Sequence[EvictionPlan]:
        """Returns the node of each member with the pods to evict there, and keeps the room. It ends at a member that no
        eviction helps.
        """
        plans = list[EvictionPlan]()
        for member in members:
            node = self._index.choose(member.request, member.nodes).node
            best = EvictionPlan(node=node, victims=()) if node is not None else await self._best(member)
            # Nothing may change between this check and the room that is kept.
            if best is None or (node is None and not self._still_helps(member, best)):
                break
            nomination = Nomination(request=member.request, priority=member.priority, node=best.node, ours=True)
            gone = [victim.uid for victim in best.victims]
            if not keep_room(self._cluster, nomination, gone, self._monotonic()):
                break
            plans.append(best)
        return plans

    async def _best(self, pod: RefusedPod) -> EvictionPlan | None:
        best: EvictionPlan | None = None
        until = self._monotonic() + POLL_SECONDS
        for number, node in enumerate([*pod.nodes[pod.start :], *pod.nodes[: pod.start]][:MOST_NODES], start=1):
            found = await self._plan(pod, node)
            if found is not None and (best is None or found.merit > best.merit):
                best = found
            known = self._pods.get(pod.request.uid)
            if known is not None:
                self._pods[pod.request.uid] = replace(known, start=(pod.start + number) % len(pod.nodes))
            if self._monotonic() >= until:
                break
            await asyncio.sleep(0)
        return best

    async def _plan(self, pod: RefusedPod, node: str) -> EvictionPlan | None:
        there = gpu_holders(self._cluster.pods, node)
        if not any(holder.priority < pod.priority or holder.leaving for holder in there):
            return None
        effort = Effort()
        alone = self._cluster.ledger.alone(node, pod.request.namespace)
        trial = EvictionTrial(alone, pod.request, pod.priority, effort)
        search = plan_evictions(trial, self._cluster.budgets, there, self._spared.keys())
        return await giving_way(within(search, effort, MOST_EFFORT))

    def _still_helps(self, pod: RefusedPod, chosen: EvictionPlan) -> bool:
        """Returns whether the plan still helps: the search paused, and the cluster may have changed."""
        there = {holder.uid: holder for holder in gpu_holders(self._cluster.pods, chosen.node)}
        leaving = frozenset(uid for uid, holder in there.items() if holder.leaving)
        ledger = self._cluster.ledger
        trial = EvictionTrial(ledger.alone(chosen.node, pod.request.namespace), pod.request, pod.priority)
        gone = leaving.union(victim.uid for victim in chosen.victims)
        return (
            all(there.get(victim.uid) == victim for victim in chosen.victims)
            and not self._cluster.budgets.violating(reversed(chosen.victims))
            and trial.fits(gone)
            and chosen.node not in ledger.kubelet.refusing(pod.pod, [chosen.node], gone)
            and (not chosen.victims or not trial.fits(leaving))
        )

    async def _evict(self, pod: RefusedPod, victims: Sequence[GpuHolder], whom: str) -> str:
        """Returns why not all of them are evicted; empty if they are. All are checked first, so that no eviction is
        useless.
        """
        for dry_run in (True, False):
            for victim in victims:
                problem = self._forbidden() or self._needless(pod) or await self._evict_one(victim, dry_run=dry_run)
                if problem:
                    return problem
                if not dry_run:
                    name = PodName(namespace=victim.namespace, name=victim.name)
                    entry = self._cluster.pods.pod(name)
                    where = f" from node {entry.node}" if entry is not None else ""
                    message = f"evicted{where} for {whom} of higher priority {pod.priority}"
                    self._live.record_event(name.reference(victim.uid), Notice(reason="Preempted", message=message))
        return ""

    def _needless(self, pod: RefusedPod) -> str:
        """Returns why more evictions would be useless; empty if they would not. Much may happen while the API server
        answers.
        """
        if self._cluster.ledger.records.reserved(pod.request.uid) is not None:
            return "it has its GPUs elsewhere by now"
        if self._cluster.ledger.records.kept(pod.request.uid) is None:
            return "the room is no longer kept for it"
        return ""

    async def _evict_one(self, victim: GpuHolder, *, dry_run: bool) -> str:
        try:
            await self._api.evict(victim.name, victim.namespace, victim.uid, dry_run=dry_run)
        except (NotFound, Conflict):
            # The pod is gone, or was created again under its name.
            return ""
        except ApiError as error:
            self._spared[victim.uid] = self._monotonic() + SPARED_SECONDS
            return f"pod {victim.namespace}/{victim.name} is not evicted: {error}"
        except ApiUnreachable as error:
            return str(error)
        return ""

    def _wait(self, pod: RefusedPod, seconds: float) -> None:
        known = self._pods.get(pod.request.uid)
        if known is not None:
            not_before = self._monotonic() + seconds
            self._pods[pod.request.uid] = replace(known, polls=pod.polls + 1, not_before=not_before)
