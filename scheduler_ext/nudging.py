"""Makes kube-scheduler look again at waiting pods that would fit now.

An extender cannot say what a pod it refused is waiting for, so kube-scheduler may leave such a pod alone for minutes.
It does look again at a pod that was updated: an annotation is.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from proto.annotations.keys import NUDGE
from proto.kubernetes.client import ApiError, ApiServer, ApiUnreachable
from proto.kubernetes.objects import PODS
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.scheduling.candidates import Candidates
from scheduler_ext.scheduling.ranking import Shape
from scheduler_ext.scheduling.waiting import WaitingPod, WaitingPods

log = logging.getLogger(__name__)

SETTLING_SECONDS = 0.2
"""After room was made: pods often end together."""
LOOK_SECONDS = 5.0
"""While pods wait, room is looked for this often even if nothing happened."""
MOST_LOOKED_AT = 20
"""At a time; pods that ask for the same are looked at once, as each look may go over all nodes."""
MOST_NUDGED = 5
"""At a time; whoever of them does not take the room leaves it to the next."""
BREATH = 100
"""Between so many waiting pods others get their answers."""


class Nudger:
    """Looks for room whenever some was made, and every few seconds; touches a few of the pods that would fit."""

    def __init__(
        self,
        *,
        api: ApiServer,
        ledger: Ledger,
        candidates: Candidates,
        waiting: WaitingPods,
        leads: Callable[[], bool],
        nudged: Callable[[], None],
        now: Callable[[], datetime],
        monotonic: Callable[[], float],
    ) -> None:
        """Nobody is nudged while this replica does not lead; `nudged` is called for each pod that was."""
        self._api = api
        self._ledger = ledger
        self._candidates = candidates
        self._waiting = waiting
        self._leads = leads
        self._nudged = nudged
        self._now = now
        self._monotonic = monotonic
        self._freed = asyncio.Event()
        self._in_vain: set[Shape] = set()
        """What was looked at last time without finding room, if there was more to look at."""

    def freed(self) -> None:
        """There may be room now."""
        self._freed.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._sleep()
            self._freed.clear()
            self._waiting.drop_forgotten(self._monotonic())
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
        self._ledger.expire(self._monotonic())
        in_vain, self._in_vain = self._in_vain, set()
        looks, left = MOST_LOOKED_AT, MOST_NUDGED
        for number, pod in enumerate(self._waiting.due(self._monotonic())):
            if number % BREATH == 0:
                await asyncio.sleep(0)
            shape = self._candidates.shape(pod.request)
            if shape in in_vain:
                continue
            if not looks:
                # Pods that fit nowhere must not keep those behind them waiting: the next time begins here.
                self._in_vain = in_vain
                return
            looks -= 1
            if not self._candidates.has_room(shape):
                in_vain.add(shape)
            else:
                await self._touch(pod)
                left -= 1
            if not left:
                return
            # Between two looks at all nodes others get their answers.
            await asyncio.sleep(0)

    async def _touch(self, pod: WaitingPod) -> None:
        request = pod.request
        self._waiting.nudged(request.uid, self._monotonic())
        stamp = self._now().astimezone(UTC).isoformat(timespec="milliseconds")
        metadata: dict[str, object] = {"annotations": {NUDGE: stamp}}
        if "/" not in request.uid:
            metadata["uid"] = request.uid
        try:
            await self._api.patch(PODS, request.pod, {"metadata": metadata}, namespace=request.namespace)
        except ApiError as error:
            # 422 where another pod took the name: kube-apiserver calls its uid immutable.
            if error.status in (404, 409, 422):
                self._waiting.settled(request.uid)
            log.info("pod %s/%s is not nudged: %s", request.namespace, request.pod, error)
        except ApiUnreachable as error:
            log.info("pod %s/%s is not nudged: %s", request.namespace, request.pod, error)
        else:
            self._nudged()
