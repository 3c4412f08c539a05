"""Makes kube-scheduler try waiting pods again that would fit now.

No answer of an extender has room for what a refused pod waits for, so kube-scheduler may not try it again for minutes.
It does try a pod again that was updated, so the extender writes an annotation.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from proto.annotations.keys import REQUEUE
from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiError, ApiUnreachable, Conflict, Invalid, NotFound
from proto.kubernetes.objects import PODS
from scheduler_ext.cluster.events import Requeued, TimePassed, WaitEnded
from scheduler_ext.cluster.waiting_pods import QueuedPod
from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.decide.preempt import decide_in_own_room
from scheduler_ext.verbs.live_cluster import LiveCluster

log = logging.getLogger(__name__)

SETTLING_SECONDS = 0.2
"""The delay after room became free: pods often end together."""
POLL_SECONDS = 5.0
"""The time after which a poll for room begins while pods wait, even if nothing happened."""
TURN_SECONDS = 0.02
"""The time of work per turn, at most a tenth of the processor's time. The next turn continues there."""
BREATH_SECONDS = 0.001
"""The time of work after which other requests get their turn."""
EFFORT = 200
"""The most effort for one pod per turn: less than a millisecond."""
MOST_REQUEUED = 5
"""The most pods requeued per turn. Room that they do not take is for the next ones."""


class Requeuer:
    """Polls for room when some became free, and every few seconds. It requeues a few of the pods that would fit."""

    def __init__(
        self,
        *,
        api: ApiServer,
        cluster: LiveCluster,
        index: NodeIndex,
        leads: Callable[[], bool],
        requeued: Callable[[], None],
        now: Callable[[], datetime],
    ) -> None:
        """No pod is requeued while `leads` returns False; `requeued` is called for each requeued pod."""
        self._api = api
        self._cluster = cluster
        self._waiting = cluster.state.queue
        self._index = index
        self._leads = leads
        self._requeued = requeued
        self._now = now
        self._monotonic = cluster.monotonic
        self._freed = cluster.freed
        self._goes_on = False
        """True if the next turn begins without waiting for room."""
        self._queue: list[QueuedPod] = []
        """Pods still to be polled in this round; the next one comes last."""
        self._unfinished: list[QueuedPod] = []
        """Pods whose search did not end in one turn: others go first."""
        self._missed = False
        """True if room may have become free for pods already polled in this round."""

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await self._sleep()
            self._note_freed()
            self._goes_on = False
            self._cluster.apply(TimePassed())
            if self._leads():
                await self._turn()

    async def _sleep(self) -> None:
        if not self._goes_on:
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self._freed.wait()
            except TimeoutError:
                return
        await asyncio.sleep(SETTLING_SECONDS)

    def _note_freed(self) -> None:
        if self._freed.is_set():
            self._freed.clear()
            self._missed = self._goes_on = True

    async def _turn(self) -> None:
        """Takes one turn. Pods that fit nowhere, however many, delay those behind them only by the time to poll
        each.
        """
        if not self._queue:
            self._begin()
        if not self._queue:
            self._end_round()
        worked, left = _Worked(self._monotonic), MOST_REQUEUED
        while self._queue and left and worked.seconds < TURN_SECONDS:
            pod = self._queue.pop()
            has_room = self._has_room(pod)
            if has_room is None:
                self._unfinished.append(pod)
            if has_room:
                await worked.pause(self._touch(pod))
                left -= 1
            elif worked.since_pause >= BREATH_SECONDS:
                await worked.pause(asyncio.sleep(0))
            if not self._queue:
                self._end_round()
        if not left:
            # Requeued pods take the room first. Then the round starts again at the first pod.
            self._queue = []
            return
        self._note_freed()
        self._goes_on = self._goes_on or self._missed or bool(self._queue)

    def _begin(self) -> None:
        self._note_freed()
        self._missed, self._unfinished = False, []
        self._queue = list(reversed(self._waiting.due(self._monotonic())))

    def _end_round(self) -> None:
        """Ends the round: each pod was polled. Unfinished ones get another turn, with all others if room may have
        become free.
        """
        self._note_freed()
        if self._unfinished and not self._missed:
            self._queue, self._unfinished = self._unfinished[::-1], []
            return
        self._index.end_polls()
        if self._unfinished:
            self._begin()

    def _has_room(self, pod: QueuedPod) -> bool | None:
        """Returns whether the pod fits somewhere. None if more work is needed; False if the pod no longer waits, or was
        requeued with another of its group.
        """
        if not self._waiting.is_due(pod.request.uid, self._monotonic()):
            return False
        # Kept room counts as taken for everything that compares shapes.
        ledger = self._cluster.state.ledger
        kept = ledger.records.kept(pod.request.uid)
        if (
            kept is not None
            and decide_in_own_room(ledger, kept.node, pod.request, pod.priority, (kept.node,)) is not None
        ):
            return True
        found = self._index.poll(pod.request, EFFORT)
        return not self._is_kept_out(pod) if found else found

    def _is_kept_out(self, pod: QueuedPod) -> bool:
        """Returns whether the pod fits only on nodes that are closed to it."""
        state, waiting = self._cluster.state, self._cluster.state.pods.pending().get(pod.request.uid)
        closed = {} if waiting is None else state.closed_to(waiting)
        left = [name for name in state.ledger.nodes.usages() if name not in closed] if closed else ()
        return bool(closed) and self._index.fits_nowhere(pod.request, left)

    async def _touch(self, pod: QueuedPod) -> None:
        request = pod.request
        for uid in self._cluster.state.gangs.tried_with(request.uid):
            self._cluster.apply(Requeued(uid))
        stamp = self._now().astimezone(UTC).isoformat(timespec="milliseconds")
        metadata: dict[str, object] = {"annotations": {REQUEUE: stamp}}
        if "/" not in request.uid:
            metadata["uid"] = request.uid
        try:
            await self._api.patch(PODS, request.pod, {"metadata": metadata}, namespace=request.namespace)
        except (ApiError, ApiUnreachable) as error:
            # Invalid if another pod has taken the name: kube-apiserver reports its uid as immutable.
            if isinstance(error, NotFound | Conflict | Invalid):
                self._cluster.apply(WaitEnded(request.uid))
            log.info("pod %s/%s is not requeued: %s", request.namespace, request.pod, error)
        else:
            self._requeued()


class _Worked:
    """Measures how long this task has worked, without its pauses."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._before = 0.0
        self._began = monotonic()

    @property
    def since_pause(self) -> float:
        return self._monotonic() - self._began

    @property
    def seconds(self) -> float:
        return self._before + self.since_pause

    async def pause(self, work: Awaitable[None]) -> None:
        self._before = self.seconds
        await work
        self._began = self._monotonic()
