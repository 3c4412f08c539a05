"""Who was served: remembered at once, written on the pods as soon as the API server takes it."""

import asyncio
import logging
from dataclasses import dataclass, field

from deviceplugin.allocation.decision import pod_name
from deviceplugin.allocation.immediate import Proven, is_finished, overtaken_phase, settlement
from deviceplugin.apiserver import OwnNode
from deviceplugin.by_pod import ByPod
from program.tasks import Tasks
from proto.annotations.bind_phase import BindPhase
from proto.kubernetes.errors import ApiError, ApiUnreachable, Invalid
from proto.kubernetes.objects import Pod

log = logging.getLogger(__name__)

_FIRST_RETRY_SECONDS = 0.2
_SLOWEST_RETRY_SECONDS = 30.0
_ATTEMPTS = 15
"""With doubling delays about five minutes, as long as a node lock lives."""


@dataclass(frozen=True, slots=True)
class _Due:
    """What a pod still has to be told. `phase` is final; None while containers of it are unserved."""

    pod: Pod
    served: frozenset[int]
    phase: BindPhase | None


@dataclass(slots=True)
class ServedPods:
    """`served` counts from the moment an answer is decided, so that two calls never get the same container.

    It is forgotten when kubelet starts anew: what it still knows is in its checkpoint, the rest it asks for again.
    """

    own: OwnNode
    resource: str
    """What containers ask GPUs by."""
    served: dict[str, frozenset[int]] = field(default_factory=dict)
    _overtaken: ByPod[None, tuple[Pod, BindPhase | None]] = field(
        default_factory=lambda: ByPod(lambda pod, _: (pod, overtaken_phase(pod)))
    )
    _settled: set[str] = field(default_factory=set)
    _due: dict[str, _Due] = field(default_factory=dict)
    _writers: Tasks = field(default_factory=Tasks)

    def claim(self, proven: Proven) -> None:
        """The container is being served."""
        self.served[proven.pod.metadata.uid] = proven.served | {proven.container}

    def serve(self, proven: Proven) -> None:
        """The container was served."""
        done = proven.served | {proven.container}
        finished = is_finished(proven.pod, done, self.resource)
        self._note(_Due(proven.pod, done, BindPhase.SUCCESS if finished else None))

    def refuse(self, pod: Pod) -> None:
        """Kubelet will not admit the pod."""
        self._note(_Due(pod, frozenset(), BindPhase.FAILED))

    def kubelet_restarted(self) -> None:
        self.served.clear()

    def catch_up(self) -> None:
        """Note what became of pods that passed admission without a note, and forget those that are gone."""
        for pod, phase in self._overtaken.of(self.own.pods, None):
            if phase is not None and pod.metadata.uid not in self._settled:
                self._note(_Due(pod, frozenset(range(len(pod.all_containers))), phase))
        if self.own.pods_known:
            self.served = {uid: done for uid, done in self.served.items() if uid in self.own.pods}
            self._settled &= self.own.pods.keys()

    async def close(self) -> None:
        """Give what is being written a moment, then stop."""
        await self._writers.end(grace_seconds=1.0)

    def _note(self, due: _Due) -> None:
        uid = due.pod.metadata.uid
        if uid not in self._due:
            self._writers.begin(self._write(uid))
        self._due[uid] = due
        if due.phase is not None:
            self._settled.add(uid)

    async def _write(self, uid: str) -> None:
        """The newest state of one pod, with retries. A multi-container pod's states may fall into one write."""
        delay, problem = _FIRST_RETRY_SECONDS, "they kept changing"
        for _ in range(_ATTEMPTS):
            due = self._due[uid]
            try:
                body = settlement(due.pod, due.served, due.phase, self.resource)
                await self.own.settle(due.pod, body, release=due.phase is not None)
            except (ApiError, ApiUnreachable) as error:
                problem = str(error)
                if isinstance(error, Invalid) and self._due[uid] is due:
                    break
                await asyncio.sleep(delay)
                delay = min(2 * delay, _SLOWEST_RETRY_SECONDS)
                continue
            if self._due[uid] is due:
                del self._due[uid]
                return
        del self._due[uid]
        log.error("pod %s was served, but its annotations could not be updated: %s", pod_name(due.pod), problem)
