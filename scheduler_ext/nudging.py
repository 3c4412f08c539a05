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
from scheduler_ext.scheduling.waiting import WaitingPod, WaitingPods

log = logging.getLogger(__name__)

SETTLING_SECONDS = 0.2
"""After room was made: pods often end together."""
LOOK_SECONDS = 5.0
"""While pods wait, room is looked for this often even if nothing happened."""
MOST_LOOKED_AT = 20
MOST_NUDGED = 5
"""At a time; whoever of them does not take the room leaves it to the next."""


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

    def freed(self) -> None:
        """There may be room now."""
        self._freed.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._sleep()
            self._freed.clear()
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
        left = MOST_NUDGED
        for pod in self._waiting.due(self._monotonic(), MOST_LOOKED_AT):
            if self._candidates.has_room(pod.request):
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
