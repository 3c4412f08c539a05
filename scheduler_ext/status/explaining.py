"""Finds out why pods wait and what still fits, for the status page, with a small part of the processor's time."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from proto.kubernetes.requests import NO_HOST
from scheduler_ext.capacity.largest import Largest, largest
from scheduler_ext.cluster.queue import QueuedPod
from scheduler_ext.decide.preempt import gpu_holders
from scheduler_ext.requests import GpuRequest
from scheduler_ext.status.why import Crowd, Misfits, WhyWaiting, crowded, misfits_of, why_of
from scheduler_ext.verbs.live_cluster import LiveCluster

LOOK_SECONDS = 0.5
PAUSE = 50.0
"""After each search it rests for so many times the time that the search took."""
LONGEST_PAUSE_SECONDS = 10.0
MOST_EXPLAINED = 20
"""The most kinds of waiting pods that are explained: those of the highest priority, then those that have waited
longest.
"""
MOST_LOOKED_AT = 1_000


class Explainer:
    """Finds out why pods wait. Searches run in another thread, on values that do not change. Pods with the same request
    share an answer.
    """

    def __init__(self, *, cluster: LiveCluster, watched: Callable[[], bool]) -> None:
        self._cluster = cluster.state
        self._monotonic = cluster.monotonic
        self._watched = watched
        self._whys: dict[GpuRequest, WhyWaiting] = {}
        """The kind searched for longest ago comes first."""
        self.fits: Sequence[Largest] = ()

    def why(self, request: GpuRequest) -> WhyWaiting | None:
        """Returns the last answer; None without one yet."""
        return self._whys.get(_kind(request))

    async def run(self) -> None:
        """Searches until cancelled, one kind of pod after the other."""
        while True:
            began = self._monotonic()
            if self._watched():
                await self._search()
            spent = self._monotonic() - began
            await asyncio.sleep(min(max(LOOK_SECONDS, PAUSE * spent), LONGEST_PAUSE_SECONDS))

    async def _search(self) -> None:
        """Searches for one kind of pod, and for what still fits."""
        kinds = [*dict.fromkeys(_kind(pod.request) for pod in self._most_important())][:MOST_EXPLAINED]
        self._whys = {kind: why for kind, why in self._whys.items() if kind in kinds}
        snapshot = self._cluster.ledger.snapshot()
        self.fits = await asyncio.to_thread(largest, snapshot)
        if not kinds:
            return
        kind = next((each for each in kinds if each not in self._whys), next(iter(self._whys), kinds[0]))
        misfits = await asyncio.to_thread(misfits_of, kind, snapshot)
        why = await asyncio.to_thread(why_of, kind, misfits, self._crowd(kind, misfits))
        self._whys.pop(kind, None)
        self._whys[kind] = why

    def _most_important(self) -> Sequence[QueuedPod]:
        pods = self._cluster.queue.longest(MOST_LOOKED_AT)
        return sorted(pods, key=lambda pod: (-pod.priority, pod.since))

    def _crowd(self, kind: GpuRequest, misfits: Misfits) -> Crowd:
        ledger, index = self._cluster.ledger, self._cluster.pods
        pods: Mapping[str, int] = {node: len(index.running(node)) for node in misfits.by_node}
        alone = {node: ledger.alone(node, kind.namespace) for node in crowded(misfits, pods)}
        nodes = {node: found for node, found in alone.items() if found is not None}
        held = {node: gpu_holders(index, node) for node in nodes}
        return Crowd(namespace=kind.namespace, nodes=nodes, holders=held)


def _kind(request: GpuRequest) -> GpuRequest:
    """Returns the request without what names its pod: pods of one kind have the same."""
    return replace(request, pod="", uid="", host=NO_HOST)
