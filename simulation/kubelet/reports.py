"""Writes statuses and events of pods as kubelet does, until the API server has taken them."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime

from proto.kubernetes.objects import Pod
from simulation.kubelet import status
from simulation.kubelet.apiserver import NodeApi, StatusNotWritten
from simulation.kubelet.device_ids import AdmissionRefused

FIRST_RETRY_SECONDS = 0.2
LONGEST_RETRY_SECONDS = 5.0


class PodReports:
    """The reports of one node."""

    def __init__(self, writes: NodeApi, node_name: str, now: Callable[[], datetime]) -> None:
        self._writes = writes
        self._node_name = node_name
        self._now = now
        self._events = 0

    async def write(self, pod: Pod, body: status.Body) -> None:
        """Writes the pod's status."""
        await self._insist(lambda: self._writes.patch_pod_status(pod, body))

    async def deleted(self, pod: Pod) -> None:
        """Finishes the deletion of a pod that has ended."""
        await self._insist(lambda: self._writes.finish_deletion(pod))

    async def refused(self, pod: Pod, refusal: AdmissionRefused) -> None:
        await self._event(pod, refusal.reason, str(refusal))
        await self.write(pod, status.refused(str(refusal), refusal.reason))

    async def waiting(self, pod: Pod, container: str, started: list[str], reason: str, message: str) -> None:
        """Writes that the container cannot be created now; those in `started` run."""
        await self._event(pod, "Failed", f"Error: {message}")
        await self.write(pod, status.waiting(pod, container, started, self._now(), reason=reason, message=message))

    async def _event(self, pod: Pod, reason: str, message: str) -> None:
        self._events += 1
        record = status.event(pod, self._node_name, serial=self._events, reason=reason, message=message, at=self._now())
        with suppress(StatusNotWritten):
            await self._writes.record_event(pod.metadata.namespace, record)

    async def _insist(self, write: Callable[[], Awaitable[None]]) -> None:
        """Waits until the API server takes it."""
        delay_seconds = FIRST_RETRY_SECONDS
        while True:
            try:
                return await write()
            except StatusNotWritten:
                await asyncio.sleep(delay_seconds)
                delay_seconds = min(2 * delay_seconds, LONGEST_RETRY_SECONDS)
