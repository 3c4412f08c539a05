"""Finds out why pods wait and what still fits, for the status page, with a small part of the processor's time."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from proto.kubernetes.objects import Pod
from scheduler_ext.capacity.largest import Largest, largest
from scheduler_ext.capacity.nearest import crowded
from scheduler_ext.capacity.pod_verdict import PodVerdict, judge_pod, likeness_of
from scheduler_ext.decide.preempt import gpu_holders
from scheduler_ext.status.waiting import Crowd, WaitingGroup, WaitingGroups, WhyWaiting, why_of
from scheduler_ext.verbs.live_cluster import LiveCluster

POLL_SECONDS = 0.5
PAUSE = 50.0
"""After each search it rests for so many times the time that the search took."""
LONGEST_PAUSE_SECONDS = 10.0
MOST_EXPLAINED = 50
"""The most kinds of waiting pods that are explained: those of the highest priority, then those that have waited
longest.
"""


class Explainer:
    """Finds out why pods wait. Searches run in another thread, on values that do not change. Pods with the same request
    share an answer.
    """

    def __init__(self, cluster: LiveCluster) -> None:
        self._cluster = cluster.state
        self._monotonic = cluster.monotonic
        self._groups = WaitingGroups(cluster.state.requests)
        self._whys: dict[bytes, WhyWaiting] = {}
        """The kind searched for longest ago comes first."""
        self.fits: Sequence[Largest] = ()

    async def waiting(self) -> tuple[WaitingGroup, ...]:
        """Returns the pods that wait, each with the last answer about it."""
        return await asyncio.to_thread(self._groups.of, self._cluster.waiting_pods(), self._whys.get)

    def why(self, pod: Pod) -> WhyWaiting | None:
        """Returns the last answer about a pod that waits; None without one yet."""
        return self._whys.get(likeness_of(pod))

    async def run(self, watched: Callable[[], bool]) -> None:
        """Searches until cancelled, one kind of pod after the other, while `watched` returns True."""
        while True:
            began = self._monotonic()
            if watched():
                await self.search()
            spent = self._monotonic() - began
            await asyncio.sleep(min(max(POLL_SECONDS, PAUSE * spent), LONGEST_PAUSE_SECONDS))

    async def search(self) -> None:
        """Searches for one kind of pod, and for what still fits."""
        self.fits = await asyncio.to_thread(largest, self._cluster.ledger.snapshot())
        groups = {
            group.kind: group for group in await self.waiting() if group.shown.why is None or group.kind in self._whys
        }
        kinds = [*groups][:MOST_EXPLAINED]
        self._whys = {kind: why for kind, why in self._whys.items() if kind in kinds}
        if not kinds:
            return
        kind = next((each for each in kinds if each not in self._whys), next(iter(self._whys), kinds[0]))
        pod = groups[kind].example
        snapshot = self._cluster.snapshot_for(pod)
        answer = await asyncio.to_thread(judge_pod, pod, self._cluster.requests, snapshot, self._cluster.gang_of(pod))
        why = await asyncio.to_thread(why_of, pod, answer, self._crowd(pod, answer), snapshot)
        self._whys.pop(kind, None)
        self._whys[kind] = why

    def _crowd(self, pod: Pod, answer: PodVerdict) -> Crowd:
        ledger, index, namespace = self._cluster.ledger, self._cluster.pods, pod.metadata.namespace
        misfits = {} if answer.decision is None else answer.decision.misfits
        pods: Mapping[str, int] = {node: len(index.running(node)) for node in misfits}
        alone = {node: ledger.alone(node, namespace) for node in crowded(misfits, pods)}
        nodes = {node: found for node, found in alone.items() if found is not None}
        held = {node: gpu_holders(index, node) for node in nodes}
        return Crowd(nodes=nodes, holders=held)
