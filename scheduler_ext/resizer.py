"""Carries out decisions about other GPU memory for running pods: one write at a time, each on the pod as it was seen.

A write that was decided on another version of the pod is refused by the API server. So nothing is decided twice by two
replicas, and what a stopped one had begun goes on from the pod's own annotations.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from math import inf

from proto.annotations.keys import DEVICES_ALLOCATED, MEMORY_RESIZE
from proto.annotations.memory_resize import ResizeAnswer, ResizeState, answer_in, answer_words, encode_answer
from proto.annotations.pod_devices import encode_pod_devices
from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiError, ApiUnreachable, Conflict, NotFound
from proto.kubernetes.objects import PODS, Notice, Pod, version_number
from scheduler_ext.cluster.events import GrowthBegan, GrowthSent
from scheduler_ext.cluster.records import namespace_of
from scheduler_ext.decide.resize import ResizeWrite, resize_write
from scheduler_ext.requests import pod_key
from scheduler_ext.verbs.live_cluster import LiveCluster

log = logging.getLogger(__name__)

EVENT_SECONDS = 1.0
"""Seconds between two events of a pod, so that a wish that changes all the time delays no events of others. The events
are those of the last answers by then.
"""
LOOK_SECONDS = 5.0
"""Seconds between two looks at all pods that wait; a change of one of them begins a look at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resizer:
    """`forbidden` returns why nothing may be written now, in one sentence; empty if something may."""

    api: ApiServer
    cluster: LiveCluster
    leads: Callable[[], bool]
    forbidden: Callable[[], Awaitable[str]]

    async def run(self) -> None:
        """Runs until cancelled."""
        wished, written = self.cluster.wished, dict[str, str]()
        wishes, announced_at = self.cluster.state.wishes, -inf
        while True:
            try:
                async with asyncio.timeout(EVENT_SECONDS if wishes.some_ended else LOOK_SECONDS):
                    await wished.wait()
            except TimeoutError:
                written.clear()
            wished.clear()
            if wishes.some_ended and (now := time.monotonic()) >= announced_at + EVENT_SECONDS:
                announced_at, ended = now, wishes.take_ended()
                if self.leads():
                    self._announce(ended)
            if self.leads():
                written = await self._look(written)

    def _announce(self, ended: Sequence[Pod]) -> None:
        """Records one event for each wish that has come to its end, whichever program wrote that."""
        for pod in ended:
            answer = answer_in(pod.metadata.annotations)
            if answer is not None:
                self.cluster.record_event(pod.reference, notice_of(answer))

    async def _look(self, written: dict[str, str]) -> dict[str, str]:
        """Takes the next step for each pod that waits, except for those whose last write the watch has not shown yet.
        Returns the version on which each was written.
        """
        now: dict[str, str] = {}
        for uid in [*self.cluster.state.wishes.every()]:
            pod = self.cluster.state.wishes.every().get(uid)
            if pod is None:
                continue
            version = pod.metadata.resource_version
            if written.get(uid) == version or await self._step(pod):
                now[uid] = version
        return now

    async def _step(self, pod: Pod) -> bool:
        """Returns whether something was sent."""
        ledger, names = self.cluster.state.ledger, self.cluster.state.requests.names
        node = ledger.alone(pod.spec.node_name, namespace_of(pod))
        write = None if node is None else resize_write(pod, names, node)
        if write is None:
            return False
        # It counts before anything is awaited: no other pod gets the room meanwhile.
        if write.counts is not None:
            self.cluster.apply(GrowthBegan(pod, write.counts))
        version = 0
        try:
            if problem := await self.forbidden():
                log.info("pod %s/%s keeps its GPU memory: %s", pod.metadata.namespace, pod.metadata.name, problem)
                return False
            version = await self._write(pod, write)
        finally:
            if write.counts is not None:
                self.cluster.apply(GrowthSent(pod_key(pod), version))
        return True

    async def _write(self, pod: Pod, write: ResizeWrite) -> int:
        """Returns the pod's version with the write; 0 if it was not written, as far as is known."""
        metadata, annotations = pod.metadata, dict[str, str]()
        if write.holds is not None:
            annotations[DEVICES_ALLOCATED] = encode_pod_devices(write.holds)
        if write.answer is not None:
            annotations[MEMORY_RESIZE] = encode_answer(write.answer)
        precondition = {"resourceVersion": metadata.resource_version} | ({"uid": metadata.uid} if metadata.uid else {})
        body = {"metadata": {**precondition, "annotations": annotations}}
        try:
            found = await self.api.patch(PODS, metadata.name, body, namespace=metadata.namespace)
        except (ApiError, ApiUnreachable) as error:
            usual = isinstance(error, Conflict | NotFound)
            log.log(logging.DEBUG if usual else logging.WARNING, "pod %s/%s: its GPU memory was not changed: %s",
                    metadata.namespace, metadata.name, error)  # fmt: skip
            return 0
        log.info("pod %s/%s: %s", metadata.namespace, metadata.name, annotations)
        return version_number(found.metadata.resource_version)


def notice_of(answer: ResizeAnswer) -> Notice:
    """Returns the event of a wish that has come to its end."""
    message = answer_words(answer)
    if answer.state is ResizeState.DONE:
        return Notice(reason="GPUMemoryResized", message=message, warning=False, distinct=True)
    return Notice(reason="GPUMemoryNotResized", message=message, distinct=True)
