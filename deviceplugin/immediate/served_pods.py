"""The containers that were served: remembered at once, and written on the pods as soon as the API server accepts it."""

import asyncio
import logging
from dataclasses import dataclass, field

from deviceplugin.apiserver import OwnNode
from deviceplugin.immediate.proof import ProvenContainer, is_finished, overtaken_phase, settlement
from deviceplugin.pod_results import PodResults
from program.tasks import Tasks
from proto.annotations.node_lock import BindPhase
from proto.kubernetes.errors import ApiError, ApiUnreachable, Invalid
from proto.kubernetes.objects import Pod

log = logging.getLogger(__name__)

_FIRST_RETRY_SECONDS = 0.2
_SLOWEST_RETRY_SECONDS = 30.0
_ATTEMPTS = 15
"""Attempts; with doubling delays they take about five minutes, the life of a node lock."""


@dataclass(frozen=True, slots=True)
class _DuePod:
    """A write that is due on a pod. `phase` is final; None while some of its containers are unserved."""

    pod: Pod
    served: frozenset[int]
    phase: BindPhase | None


@dataclass(slots=True)
class ServedPods:
    """`served` counts from the moment an answer is decided, so that two calls never get the same container.

    It is forgotten when kubelet restarts: kubelet's checkpoint has what it still knows, and it calls
    again for the rest.
    """

    own: OwnNode
    resource: str
    """The resource by which containers request GPUs."""
    served: dict[str, frozenset[int]] = field(default_factory=dict)
    _overtaken: PodResults[None, tuple[Pod, BindPhase | None]] = field(
        default_factory=lambda: PodResults(lambda pod, _: (pod, overtaken_phase(pod)))
    )
    _settled: set[str] = field(default_factory=set)
    _due: dict[str, _DuePod] = field(default_factory=dict)
    _writers: Tasks = field(default_factory=Tasks)

    def claim(self, proven: ProvenContainer) -> None:
        """Notes that the container is being served."""
        self.served[proven.pod.metadata.uid] = proven.served | {proven.container}

    def serve(self, proven: ProvenContainer) -> None:
        """Notes that the container was served."""
        done = proven.served | {proven.container}
        finished = is_finished(proven.pod, done, self.resource)
        self._note(_DuePod(proven.pod, done, BindPhase.SUCCESS if finished else None))

    def refuse(self, pod: Pod) -> None:
        """Notes that kubelet will not admit the pod."""
        self._note(_DuePod(pod, frozenset(), BindPhase.FAILED))

    def kubelet_restarted(self) -> None:
        self.served.clear()

    def catch_up(self) -> None:
        """Notes the outcome of pods that were admitted without a note, and forgets deleted ones."""
        for pod, phase in self._overtaken.of(self.own.pods, None):
            if phase is not None and pod.metadata.uid not in self._settled:
                self._note(_DuePod(pod, frozenset(range(len(pod.all_containers))), phase))
        if self.own.pods_known:
            self.served = {uid: done for uid, done in self.served.items() if uid in self.own.pods}
            self._settled &= self.own.pods.keys()

    async def close(self) -> None:
        """Waits briefly for the current write, then stops."""
        await self._writers.end(grace_seconds=1.0)

    def _note(self, due: _DuePod) -> None:
        uid = due.pod.metadata.uid
        if uid not in self._due:
            self._writers.begin(self._write(uid))
        self._due[uid] = due
        if due.phase is not None:
            self._settled.add(uid)

    async def _write(self, uid: str) -> None:
        """Writes the newest state of one pod, with retries. One write may cover several containers."""
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
        log.error("pod %s was served, but its annotations cannot be updated: %s", due.pod.full_name, problem)
