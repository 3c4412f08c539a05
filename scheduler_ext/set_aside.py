"""Writes on waiting pods which node is set aside for them, and when that is over."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from datetime import UTC, datetime

from proto.annotations.keys import SET_ASIDE
from proto.annotations.set_aside import SetAside, encode_set_aside
from proto.annotations.unhealthy_since import stamp
from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiError, ApiUnreachable
from proto.kubernetes.objects import PODS, Notice, ObjectReference, Pod
from scheduler_ext.cluster.events import BackfillAllowed
from scheduler_ext.cluster.pod_index import seconds_of
from scheduler_ext.decide.setting_aside import newly_set_aside
from scheduler_ext.requests import GpuRequest
from scheduler_ext.settings import ServeSettings
from scheduler_ext.verbs.live_cluster import LiveCluster
from scheduler_ext.verbs.turns import giving_way
from scheduler_ext.verbs.waiting_jobs import WaitingJobs, ended

log = logging.getLogger(__name__)

TURN_SECONDS = 5.0
"""The time between two turns."""
LEAST_SECONDS = 1.0
"""The time after which the next turn begins if a pod was refused meanwhile."""


class SetAsideWriter:
    """Takes a turn every few seconds, on the replica that leads."""

    def __init__(
        self,
        *,
        api: ApiServer,
        cluster: LiveCluster,
        leads: Callable[[], bool],
        forbidden: Callable[[], Awaitable[str]],
        now: Callable[[], datetime],
        settings: ServeSettings,
    ) -> None:
        """`forbidden` returns why nothing may be written now, in one sentence; empty if something may."""
        self._api = api
        self._cluster = cluster
        self._leads = leads
        self._forbidden = forbidden
        self._now = now
        self._after = settings.set_aside_after_seconds
        self._evicts = settings.gpu_preemption
        self._was_refused = asyncio.Event()
        self._jobs = WaitingJobs(cluster.state, self._after)

    def refused(self, pod: Pod, request: GpuRequest, nodes: Collection[str]) -> None:
        """Records that no node has room for the pod; on these nodes it may fit once others have ended."""
        if self._after:
            self._jobs.refused(pod, request, nodes)
            self._was_refused.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            if self._leads() and (self._after or self._cluster.state.ledger.set_asides):
                await self._turn()
            await asyncio.sleep(LEAST_SECONDS)
            try:
                async with asyncio.timeout(TURN_SECONDS - LEAST_SECONDS):
                    await self._was_refused.wait()
            except TimeoutError:
                continue
            self._was_refused.clear()

    async def _turn(self) -> None:
        state, now = self._cluster.state, self._now().timestamp()
        backfill_until = self._jobs.backfill_until(now, time.monotonic())
        self._cluster.apply(BackfillAllowed(backfill_until, self._evicts))
        for uid, why in self._jobs.over(now).items():
            await self._end(uid, why, now)
        due = await giving_way(self._jobs.due(now))
        if not due:
            return
        nodes = await giving_way(self._jobs.nodes(now))
        taken = self._jobs.taken(now)
        search = await asyncio.to_thread(newly_set_aside, due, nodes, taken, now=now, after=self._after)
        self._jobs.searched(due, search, now)
        for uid, aside in search.asides.items():
            pod = state.pods.pending().get(uid)
            if pod is not None and await self._write(pod, aside):
                self._jobs.written(aside.node, now)
                self._announce(pod, aside, now)

    async def _end(self, uid: str, why: str, now: float) -> None:
        pod, known = self._cluster.state.pods.pending().get(uid), self._cluster.state.ledger.set_asides.every().get(uid)
        if pod is None or known is None:
            return
        if await self._write(pod, ended(known.aside, now, why)):
            node = known.aside.node
            message = f"node {node} is no longer set aside for {known.owner}: {why}"
            self._record(pod, node, Notice(reason="NodeNoLongerSetAside", message=message, warning=False))

    def _announce(self, pod: Pod, aside: SetAside, now: float) -> None:
        waited = (now - seconds_of(pod.metadata.creation_timestamp)) / 60
        name = f"{pod.metadata.namespace}/{pod.metadata.name}"
        message = (
            f"node {aside.node} is set aside for pod {name}, which has waited for {waited:.0f} min, until "
            f"{stamp(datetime.fromtimestamp(aside.until, UTC))} at the latest. Other pods are placed there only if "
            "they end in time or may be evicted"
        )
        self._record(pod, aside.node, Notice(reason="NodeSetAside", message=message, warning=False))

    def _record(self, pod: Pod, node: str, notice: Notice) -> None:
        self._cluster.record_event(pod.reference, notice)
        self._cluster.record_event(ObjectReference(api_version="v1", kind="Node", name=node, uid=node), notice)

    async def _write(self, pod: Pod, aside: SetAside) -> bool:
        """Returns whether it was written."""
        metadata = pod.metadata
        if problem := await self._forbidden():
            log.info("no node is set aside for pod %s/%s: %s", metadata.namespace, metadata.name, problem)
            return False
        body = {"metadata": {"uid": metadata.uid, "annotations": {SET_ASIDE: encode_set_aside(aside)}}}
        try:
            await self._api.patch(PODS, metadata.name, body, namespace=metadata.namespace)
        except (ApiError, ApiUnreachable) as error:
            log.info(
                "pod %s/%s: what is set aside for it was not written: %s", metadata.namespace, metadata.name, error
            )
            return False
        return True
