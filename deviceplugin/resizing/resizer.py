"""Carries out the daemon's steps about wishes for other GPU memory (edge of the API server and the driver)."""

import asyncio
import logging
from collections.abc import Mapping

from deviceplugin.allocation.decision import SecondCount, decided_devices, lives
from deviceplugin.allocation.sources import AllocationSources
from deviceplugin.limits.driver import DriverLimits, Limited, bytes_of
from deviceplugin.nvml.memory_limits import MemoryLimit, MemoryLimits, is_slow, not_set
from deviceplugin.resizing.step import PodLook, SetLimits, WriteAnswer, is_looked_at, needs_use, next_step
from proto.annotations.errors import AnnotationError
from proto.annotations.keys import DEVICES_ALLOCATED, MEMORY_RESIZE
from proto.annotations.memory_resize import ResizeAnswer, answer_in, encode_answer, wish_in, with_sizes
from proto.devices import DeviceUUID, PodShares
from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiError, ApiUnreachable, Conflict, NotFound
from proto.kubernetes.objects import PODS, Pod

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""Seconds between two looks; a change of a pod begins one at once."""
_MOST_STEPS = 2 * 256
"""The most steps of one look: two for each container that a pod may have."""


STARTS_AGAIN = None
"""The container has ended, starts again, or its GPU does not answer in time: look again later."""


class LimitChanges:
    """Without `memory` the driver limits nothing."""

    def __init__(self, driver: DriverLimits, memory: MemoryLimits | None) -> None:
        self._driver = driver
        self._memory = memory

    async def used_bytes(self, pod_uid: str) -> Mapping[str, Mapping[DeviceUUID, int]]:
        """Returns what each container of the pod uses of each of its GPUs whose limit holds."""
        limited = {name: each for name, each in self._driver.of_pod(pod_uid).items() if each.group}
        if self._memory is None or not limited:
            return {}
        answers = await self._memory.read({each.group: tuple(each.limits_mib) for each in limited.values()})
        return {
            name: {
                gpu: answer.used_bytes
                for gpu, answer in answers[each.group].items()
                if isinstance(answer, MemoryLimit) and answer.holds(bytes_of(each.limits_mib)[gpu])
            }
            for name, each in limited.items()
        }

    async def set(self, pod_uid: str, container: str, limits_mib: Mapping[DeviceUUID, int]) -> str | None:
        """Has the driver hold a running container to other limits. Returns why it does not, empty if it does, or
        `STARTS_AGAIN`.
        """
        async with self._driver.writing:
            limited = self._driver.of_pod(pod_uid).get(container)
            if limited is None or not limited.group or self._memory is None:
                return STARTS_AGAIN
            refusals = await self._memory.set(limited.group, bytes_of(limits_mib))
            problem = not_set(refusals)
            if not problem:
                try:
                    return "" if await self._driver.change((pod_uid, container), limited, limits_mib) else STARTS_AGAIN
                except OSError as error:
                    problem = f"the limits of the container cannot be written: {error}"
            await self._set_back(self._memory, limited)
            return STARTS_AGAIN if any(map(is_slow, refusals.values())) else problem

    @staticmethod
    async def _set_back(memory: MemoryLimits, limited: Limited) -> None:
        """Some of the GPUs may have taken the new limits. What fails here is set again at the next look at limits."""
        await memory.set(limited.group, bytes_of(limited.limits_mib))


class MemoryResizer:
    def __init__(self, api: ApiServer, sources: AllocationSources, driver: DriverLimits, changes: LimitChanges) -> None:
        self._api = api
        self._own = sources.own
        self._gpus = sources.gpus
        self._resource = sources.resource
        self._count = SecondCount(sources.resource)
        self._news = sources.changes
        self._driver = driver
        self._changes = changes
        self._reported: dict[str, str] = {}
        """The last problem of each pod that was logged, by UID."""

    async def run(self) -> None:
        """Runs until cancelled."""
        await self._driver.recalled.wait()
        while True:
            change = self._news.next()
            if self._own.pods_known:
                wishing = [uid for uid, pod in self._own.pods.items() if _has_wish(pod)]
                self._reported = {uid: problem for uid, problem in self._reported.items() if uid in wishing}
                for uid in wishing:
                    await self._pod(uid)
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await change.wait()
            except TimeoutError:
                continue

    async def _pod(self, uid: str) -> None:
        """Takes steps for the pod until one of them waits for others."""
        failed: dict[str, str] = {}
        for _ in range(_MOST_STEPS):
            pod = self._own.pods.get(uid)
            step = None if pod is None else next_step(await self._look(pod, failed))
            if pod is None or step is None:
                return
            if isinstance(step, WriteAnswer):
                await self._write(pod, step.answer)
                return
            problem = self._over(pod, step) or await self._changes.set(uid, step.container, step.limits_mib)
            if problem is STARTS_AGAIN:
                return
            if problem:
                failed[step.container] = problem
                self._report(pod, f"container {step.container} keeps its limits of GPU memory: {problem}")
            else:
                log.info("pod %s, container %s: the driver limits GPU memory to %s", pod.full_name, step.container,
                         ", ".join(f"{mib} MiB of {gpu}" for gpu, mib in step.limits_mib.items()))  # fmt: skip

    async def _look(self, pod: Pod, failed: dict[str, str]) -> PodLook:
        uid, annotations = pod.metadata.uid, pod.metadata.annotations
        shares, problem = self._shares(pod)
        limited = self._driver.of_pod(uid)
        look = PodLook(
            wish=wish_in(annotations),
            answer=answer_in(annotations),
            containers=[container.name for container in pod.all_containers],
            shares=shares,
            problem=problem,
            running=frozenset(each.name for each in pod.all_statuses if each.state.running is not None),
            expected=limited.keys(),
            held={name: each.limits_mib for name, each in limited.items() if each.group},
            failed=dict(failed),
        )
        return look.using(await self._changes.used_bytes(uid)) if needs_use(look) else look

    def _shares(self, pod: Pod) -> tuple[PodShares, str]:
        try:
            decided = decided_devices(pod, DEVICES_ALLOCATED, self._resource)
        except AnnotationError as error:
            return (), str(error)
        return with_sizes(decided, {gpu: device.memory_mib for gpu, device in self._gpus.kept_by_uuid().items()}), ""

    def _over(self, pod: Pod, step: SetLimits) -> str:
        """Returns why larger limits would give out more than a GPU has; empty if they would not. It is the second check
        behind the scheduler.
        """
        limited = self._driver.of_pod(pod.metadata.uid).get(step.container)
        if limited is None or all(mib <= limited.limits_mib.get(gpu, 0) for gpu, mib in step.limits_mib.items()):
            return ""
        pods = self._own.pods
        return self._count.exceeded(pod, pods, self._gpus.kept_by_uuid(), pods.keys())

    async def _write(self, pod: Pod, answer: ResizeAnswer | None) -> None:
        metadata = pod.metadata
        annotations = {MEMORY_RESIZE: None if answer is None else encode_answer(answer)}
        precondition = {"uid": metadata.uid, "resourceVersion": metadata.resource_version}
        body = {"metadata": {**precondition, "annotations": annotations}}
        try:
            await self._api.patch(PODS, metadata.name, body, namespace=metadata.namespace)
        except (Conflict, NotFound) as error:
            log.debug("pod %s: %s", pod.full_name, error)  # the watch will show why
        except (ApiError, ApiUnreachable) as error:
            self._report(pod, f"its wish for other GPU memory has no answer: {error}")
        else:
            log.info("pod %s: %s is now %s", pod.full_name, MEMORY_RESIZE, annotations[MEMORY_RESIZE])

    def _report(self, pod: Pod, problem: str) -> None:
        if self._reported.get(pod.metadata.uid) != problem:
            self._reported[pod.metadata.uid] = problem
            log.warning("pod %s: %s", pod.full_name, problem)


def _has_wish(pod: Pod) -> bool:
    return lives(pod) and pod.metadata.deletion_timestamp is None and is_looked_at(pod.metadata.annotations)
