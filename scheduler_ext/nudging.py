"""Makes kube-scheduler look again at waiting pods that would fit now.

An extender cannot say what a pod it refused is waiting for, so kube-scheduler may leave such a pod alone for minutes.
It does look again at a pod that was updated: an annotation is.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from proto.annotations.keys import NUDGE
from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiError, ApiUnreachable, Conflict, Invalid, NotFound
from proto.kubernetes.objects import PODS
from scheduler_ext.binding.live import LiveCluster
from scheduler_ext.cluster.events import Nudged, TimePassed, WaitEnded
from scheduler_ext.cluster.waiting import WaitingPod
from scheduler_ext.scheduling.candidates import Candidates
from scheduler_ext.scheduling.kept_rooms import in_its_own
from scheduler_ext.scheduling.ranking import Shape
from scheduler_ext.scheduling.room import Room

log = logging.getLogger(__name__)

SETTLING_SECONDS = 0.2
"""After room was made: pods often end together."""
LOOK_SECONDS = 5.0
"""While pods wait, room is looked for this often even if nothing happened."""
TURN_SECONDS = 0.02
"""Of work at a time, a tenth of the processor's at most; the next time goes on from there."""
BREATH_SECONDS = 0.001
"""Of work between which others get their answers."""
EFFORT = 200
"""As `Judge` counts it, for one pod at once: less than a millisecond."""
MOST_NUDGED = 5
"""At a time; whoever of them does not take the room leaves it to the next."""


class Nudger:
    """Looks for room whenever some was made, and every few seconds; touches a few of the pods that would fit."""

    def __init__(
        self,
        *,
        api: ApiServer,
        cluster: LiveCluster,
        candidates: Candidates,
        leads: Callable[[], bool],
        nudged: Callable[[], None],
        now: Callable[[], datetime],
    ) -> None:
        """Nobody is nudged while this replica does not lead; `nudged` is called for each pod that was."""
        self._api = api
        self._cluster = cluster
        self._waiting = cluster.state.waiting
        self._candidates = candidates
        self._leads = leads
        self._nudged = nudged
        self._now = now
        self._monotonic = cluster.monotonic
        self._freed = asyncio.Event()
        self._room = Room(candidates)
        cluster.freed = self.freed
        self._queue: list[WaitingPod] = []
        """Who is still to be looked at before anybody is looked at again; the next one comes last."""
        self._unfinished: list[WaitingPod] = []
        """Who was looked at without an end: others have their turn first."""
        self._shapes: set[Shape] = set()
        """Of those that were looked at since all were."""
        self._missed = False
        """Whether there may be room for some that were looked at before it was made."""

    def freed(self) -> None:
        """There may be room now."""
        self._missed = True
        self._freed.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._sleep()
            self._freed.clear()
            self._cluster.apply(TimePassed())
            if self._leads():
                await self._nudge()

    async def _sleep(self) -> None:
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await self._freed.wait()
        except TimeoutError:
            return
        await asyncio.sleep(SETTLING_SECONDS)

    async def _nudge(self) -> None:
        """Pods that fit nowhere, however many, keep those behind them waiting only as long as looking at each takes."""
        if not self._queue:
            self._begin()
        if not self._queue:
            self._end_round()
        worked, nudges = _Worked(self._monotonic), MOST_NUDGED
        while self._queue and nudges and worked.seconds < TURN_SECONDS:
            pod = self._queue.pop()
            has_room = self._has_room(pod)
            if has_room is None:
                self._unfinished.append(pod)
            if has_room:
                await worked.pause(self._touch(pod))
                nudges -= 1
            elif worked.since_pause >= BREATH_SECONDS:
                await worked.pause(asyncio.sleep(0))
            if not self._queue:
                self._end_round()
        if not nudges:
            # Who was nudged takes the room first; then the first in order are looked at again.
            self._queue = []
        elif self._queue or self._missed:
            self._freed.set()

    def _begin(self) -> None:
        self._missed, self._unfinished = False, []
        self._queue = list(reversed(self._waiting.due(self._monotonic())))

    def _end_round(self) -> None:
        """Each was looked at. Those without an end have another turn, with all others if there may be room since."""
        if self._unfinished and not self._missed:
            self._queue, self._unfinished = self._unfinished[::-1], []
            return
        self._room.keep(self._shapes)
        self._shapes = set()
        if self._unfinished:
            self._begin()

    def _has_room(self, pod: WaitingPod) -> bool | None:
        """None if more is to be done to know; False of a pod that waits no more."""
        if not self._waiting.waits(pod.request.uid):
            return False
        # To all that compares shapes, room that is kept is taken.
        ledger = self._cluster.state.ledger
        kept = ledger.kept().get(pod.request.uid)
        if kept is not None and in_its_own(ledger, pod.request, pod.priority, (kept.node,)) is not None:
            return True
        shape = self._candidates.shape(pod.request)
        self._shapes.add(shape)
        return self._room.look(shape, EFFORT)

    async def _touch(self, pod: WaitingPod) -> None:
        request = pod.request
        self._cluster.apply(Nudged(request.uid))
        stamp = self._now().astimezone(UTC).isoformat(timespec="milliseconds")
        metadata: dict[str, object] = {"annotations": {NUDGE: stamp}}
        if "/" not in request.uid:
            metadata["uid"] = request.uid
        try:
            await self._api.patch(PODS, request.pod, {"metadata": metadata}, namespace=request.namespace)
        except (ApiError, ApiUnreachable) as error:
            # Invalid where another pod took the name: kube-apiserver calls its uid immutable.
            if isinstance(error, NotFound | Conflict | Invalid):
                self._cluster.apply(WaitEnded(request.uid))
            log.info("pod %s/%s is not nudged: %s", request.namespace, request.pod, error)
        else:
            self._nudged()


class _Worked:
    """How long this task has worked, without its pauses."""

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
