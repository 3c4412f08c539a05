"""The feedback loop between GPU tasks of one node: it reads their HAMi-core regions and makes tasks wait for others."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from functools import partial
from threading import Lock

from deviceplugin.apiserver import OwnNode
from deviceplugin.container.edits import container_facts
from deviceplugin.container.hami_core_names import CONTAINERS
from deviceplugin.own_threads import OwnThreads
from deviceplugin.pod_results import PodResults
from deviceplugin.region_files import read_switches, write_switches
from deviceplugin.settings import Feedback
from deviceplugin.usage.feedback import DEFAULT_PRIORITY, GpuTasks, Who, of_interest, released, switched
from deviceplugin.usage.used import held_by
from proto.kubernetes.objects import Notice, ObjectReference, Pod

log = logging.getLogger(__name__)

ROUND_SECONDS = 5.0
"""Seconds of one round, as in HAMi. HAMi-core relies on it: what it writes at a launch lasts for two rounds."""

_END_SECONDS = 3.0
"""Seconds for the last writes to all regions. A disk may hang, and kubelet kills a pod after its grace period."""


class FeedbackLoop:
    """`now` is Unix time in seconds. `announce` is for the events of pods."""

    def __init__(
        self,
        own: OwnNode,
        hook_path: str,
        feedback: Feedback,
        resource_priority: str,
        *,
        now: Callable[[], float],
        announce: Callable[[ObjectReference, Notice], None],
        end_seconds: float = _END_SECONDS,
    ) -> None:
        self._own = own
        self._containers = f"{hook_path}/vgpu/{CONTAINERS}"
        self._feedback = feedback
        self._resource = resource_priority
        self._now = now
        self._end_seconds = end_seconds
        self._announce = announce
        self._tasks_by_pod = PodResults(tasks_of)
        self._warned: frozenset[str] = frozenset()
        self._logged: Set[Who] = frozenset()
        self._watched: frozenset[Who] = frozenset()
        """The tasks that wait, or may."""
        self._problem = ""
        self._thread = OwnThreads("feedback")
        self._lock = Lock()
        self._is_first, self._has_ended = True, False
        self.waiting: frozenset[Who] = frozenset()
        """The containers whose tasks wait for those of others."""

    async def run(self) -> None:
        """Runs until cancelled; then it releases all tasks."""
        try:
            while True:
                if self._own.pods_known:
                    tasks = self._tasks()
                    if self._feedback is not Feedback.OFF or self._is_first:
                        await self._thread.call(partial(self.go, tasks))
                    if self._feedback is Feedback.OFF:
                        self._record_priorities(tasks)
                await asyncio.sleep(ROUND_SECONDS)
        finally:
            await self._end_in_time()

    async def _end_in_time(self) -> None:
        try:
            # The thread of the rounds is not used, because one of them may hang there.
            async with asyncio.timeout(self._end_seconds):
                await OwnThreads("feedback's end").call(partial(self.end, self._tasks()))
        except TimeoutError:
            log.warning(
                "%s does not answer, so GPU tasks may wait for others until this daemon runs again",
                self._containers,
            )

    def go(self, tasks: Mapping[Who, GpuTasks]) -> None:
        """Does one round. Blocks. The first reads all regions, because an earlier daemon, or HAMi's monitor, may have
        written there.
        """
        with self._lock, self._problems_logged():
            if self._has_ended:
                return
            if self._feedback is Feedback.OFF:
                self._release(tasks)
            else:
                self._round(tasks)
            self._is_first, self._problem = False, ""

    def end(self, tasks: Mapping[Who, GpuTasks]) -> None:
        """Blocks."""
        with self._lock, self._problems_logged():
            self._has_ended = True
            if self._feedback is not Feedback.OFF:
                self._release(tasks)

    @contextmanager
    def _problems_logged(self) -> Iterator[None]:
        """Handles a folder of regions that is missing, or a link, which is not followed: then no task is changed."""
        try:
            yield
        except OSError as error:
            problem = f"{self._containers} cannot be opened: {error.strerror or error}"
            if problem != self._problem:
                self._problem = problem
                log.warning("%s; until that changes, no GPU task is paused or resumed", problem)

    def _round(self, tasks: Mapping[Who, GpuTasks]) -> None:
        wanted = frozenset(tasks) if self._is_first else of_interest(tasks, self._watched, self._feedback)
        seen, problems = read_switches(self._containers, sorted(wanted))
        for who in sorted(problems.keys() - self._logged):
            log.warning(
                "region of container %s of pod %s: %s; its tasks are not changed", *reversed(who), problems[who]
            )
        # Log once for each container: its tenant decides how often it happens.
        self._logged = (self._logged | problems.keys()) & tasks.keys()
        after = switched(tasks, seen, self._feedback, self._now())
        write_switches(self._containers, {who: each for who, each in after.items() if each != seen[who]})
        self.waiting = frozenset(who for who, each in after.items() if each.recent_kernel < 0)
        # Keep them until they are seen not to wait: a write may not have reached the disk, and an unreadable region may
        # still make them wait.
        were = {who for who, each in seen.items() if each.recent_kernel < 0}
        self._watched = self.waiting | were | (self._watched & tasks.keys() - seen.keys())

    def _tasks(self) -> Mapping[Who, GpuTasks]:
        found = self._tasks_by_pod.of(self._own.pods, self._resource)
        return {who: each for of_pod in found for who, each in of_pod.items()}

    def _release(self, tasks: Mapping[Who, GpuTasks]) -> None:
        seen, _ = read_switches(self._containers, sorted(tasks))
        write_switches(self._containers, {who: released(each) for who, each in seen.items() if released(each) != each})
        self.waiting = frozenset()

    def _record_priorities(self, tasks: Mapping[Who, GpuTasks]) -> None:
        """Writes an event, once for each pod whose priority has no effect."""
        asking = {uid for (uid, _), each in tasks.items() if each.priority != DEFAULT_PRIORITY}
        for uid in sorted(asking - self._warned):
            pod = self._own.pods.get(uid)
            if pod is not None:
                message = (
                    f"{self._resource} has no effect on node {self._own.name}: its daemon makes no task wait for "
                    "another (setting feedback: off)"
                )
                self._announce(pod.reference, Notice(reason="PriorityIgnored", message=message))
        self._warned = frozenset(asking)


def tasks_of(pod: Pod, resource_priority: str) -> Mapping[Who, GpuTasks]:
    """Returns the tasks of each container with GPUs, by the pod's decision and spec."""
    containers = {each.name: each for each in pod.all_containers}
    found: dict[Who, GpuTasks] = {}
    for name, gpus in held_by(pod).items():
        priority = container_facts(pod.metadata.uid, containers[name], resource_priority).priority
        own = DEFAULT_PRIORITY if priority is None else priority
        found[pod.metadata.uid, name] = GpuTasks(gpus=gpus, priority=own)
    return found
