"""The node daemon's loops: read the GPUs, report them, follow the API server, serve kubelet, keep book."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from deviceplugin.allocation import AllocationSettings, ContainerEdits, ContainerFacts, container_edits
from deviceplugin.apiserver import News, OwnNode
from deviceplugin.hook import HookUnusable, find_hook, prepare
from deviceplugin.immediate import (
    Proven,
    Refused,
    containers_of,
    is_finished,
    overtaken_phase,
    pod_name,
    prove,
    settlement,
)
from deviceplugin.kubelet import CannotAllocate, PluginServer
from deviceplugin.replicas import preferred_replicas, split_replica
from deviceplugin.reporting import AllocationMode, report, with_missing
from deviceplugin.settings import AgentSettings, KubeletSettings
from proto.annotations.bind_phase import BindPhase
from proto.devices import Device, DeviceUUID, PairScores
from proto.kubernetes.client import ApiError, ApiServer, ApiUnreachable
from proto.kubernetes.objects import Pod

log = logging.getLogger(__name__)

_FIRST_RETRY_SECONDS = 0.2
_SLOWEST_RETRY_SECONDS = 30.0
_SETTLE_ATTEMPTS = 15
"""With doubling delays about five minutes, as long as a node lock lives."""
_REPORT_SECONDS = 0.5
"""At most one report in this time, whoever else may be writing the same annotations."""
_HOPELESS = frozenset({400, 403, 422})


class GpusUnavailable(Exception):
    """No driver, or no GPU; one sentence. `needs_restart`: only a new process can see them again."""

    def __init__(self, sentence: str, *, needs_restart: bool = False) -> None:
        super().__init__(sentence)
        self.needs_restart = needs_restart


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    devices: tuple[Device, ...]
    """By NVML index."""
    scores: PairScores


@dataclass(frozen=True, slots=True)
class _Due:
    """What a pod still has to be told. `phase` is final; None while containers of it are unserved."""

    pod: Pod
    served: frozenset[int]
    phase: BindPhase | None


@dataclass(slots=True)
class Books:
    """Who was served, in memory at once and on the pods as soon as the API server takes it."""

    own: OwnNode
    served: dict[str, frozenset[int]] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)
    _due: dict[str, _Due] = field(default_factory=dict)
    _writers: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    def serve(self, proven: Proven) -> None:
        uid = proven.pod.metadata.uid
        done = self.served[uid] = self.served.get(uid, frozenset()) | {proven.container}
        self._note(_Due(proven.pod, done, BindPhase.SUCCESS if is_finished(proven.pod, done) else None))

    def refuse(self, pod: Pod) -> None:
        self._note(_Due(pod, frozenset(), BindPhase.FAILED))

    def catch_up(self) -> None:
        """Close the books of pods that got past admission unrecorded, forget those that are gone."""
        for pod in self.own.pods.values():
            phase = overtaken_phase(pod)
            if phase is not None and pod.metadata.uid not in self.settled:
                self._note(_Due(pod, frozenset(range(len(containers_of(pod)))), phase))
        if self.own.pods_known:
            self.served = {uid: done for uid, done in self.served.items() if uid in self.own.pods}
            self.settled &= self.own.pods.keys()

    async def close(self) -> None:
        """Give what is being written a moment, then stop."""
        writers = list(self._writers.values())
        if writers:
            await asyncio.wait(writers, timeout=1.0)
        for writer in writers:
            writer.cancel()

    def _note(self, due: _Due) -> None:
        uid = due.pod.metadata.uid
        self._due[uid] = due
        if due.phase is not None:
            self.settled.add(uid)
        if uid not in self._writers:
            self._writers[uid] = asyncio.create_task(self._write(uid))

    async def _write(self, uid: str) -> None:
        """The newest state of one pod, with retries. A multi-container pod's states may fall into one write."""
        delay, problem = _FIRST_RETRY_SECONDS, "they kept changing"
        for _ in range(_SETTLE_ATTEMPTS):
            due = self._due[uid]
            try:
                await self.own.settle(
                    due.pod, settlement(due.pod, due.served, due.phase), release=due.phase is not None
                )
            except (ApiError, ApiUnreachable) as error:
                problem = str(error)
                if isinstance(error, ApiError) and error.status in _HOPELESS:
                    break
                await asyncio.sleep(delay)
                delay = min(2 * delay, _SLOWEST_RETRY_SECONDS)
                continue
            if self._due[uid] is due:
                del self._due[uid], self._writers[uid]
                return
        del self._due[uid], self._writers[uid]
        log.error("pod %s was served, but its annotations could not be updated: %s", pod_name(due.pod), problem)


class Agent:
    """One node's daemon. `read_gpus` blocks and raises GpusUnavailable; it runs in a thread of its own."""

    def __init__(
        self,
        api: ApiServer,
        read_gpus: Callable[[], Inventory],
        settings: AgentSettings,
        *,
        allocation: AllocationSettings | None = None,
        kubelet: KubeletSettings | None = None,
    ) -> None:
        self._read_gpus = read_gpus
        self._settings = settings
        self._allocation = allocation or AllocationSettings()
        self._news = News()
        self._own = OwnNode(api, settings.node_name, self._news)
        self._books = Books(self._own)
        self._plugin = PluginServer(kubelet or KubeletSettings(), self)
        self._inventory = Inventory(devices=(), scores={})

    async def run(self) -> None:
        """Until cancelled; then kubelet's plugin socket is gone."""
        try:
            async with asyncio.TaskGroup() as group:
                for loop in (
                    self._own.follow_node(),
                    self._own.follow_pods(),
                    self._read(),
                    self._report(),
                    self._serve(),
                    self._catch_up(),
                ):
                    group.create_task(loop)
        finally:
            await self._books.close()

    # What kubelet asks.

    async def devices(self) -> AsyncGenerator[tuple[Device, ...], None]:
        """The GPUs now and after every change."""
        told: tuple[Device, ...] | None = None
        while True:
            news = self._news.next()
            if self._inventory.devices != told:
                told = self._inventory.devices
                yield told
            else:
                await news.wait()

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """Ids on the GPUs decided for whoever asks; empty when nobody can be proven in time."""
        answer = await self._find(size, self._settings.prefer_seconds)
        if isinstance(answer, Refused):
            return ()
        return preferred_replicas([share.uuid for share in answer.shares], available, must_include, size)

    async def allocate(self, ids: Sequence[str]) -> ContainerEdits:
        """Answered from the annotation of the pod it is proven to be for. Raises CannotAllocate."""
        answer = await self._find(len(ids), self._settings.allocate_seconds)
        if isinstance(answer, Refused):
            if answer.pod is not None:
                self._books.refuse(answer.pod)
            raise CannotAllocate(self._explain(answer.sentence))
        edits = self._edits(answer)
        self._books.serve(answer)
        self._log_served(answer, ids)
        return edits

    async def _find(self, ids: int, seconds: float) -> Proven | Refused:
        """Whoever asks, with up to `seconds` for the watch to bring the pod. No waiting after the last look."""
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            news = self._news.next()
            answer = self._prove(ids)
            if isinstance(answer, Proven) or not answer.may_change:
                return answer
            try:
                async with asyncio.timeout_at(deadline):
                    await news.wait()
            except TimeoutError:
                return answer

    def _prove(self, ids: int) -> Proven | Refused:
        if not self._own.pods_known:
            return Refused(f"the pods of node {self._own.name} are not known yet", may_change=True)
        return prove(
            tuple(self._own.pods.values()),
            self._own.lock(),
            ids,
            self._books.served,
            node_name=self._own.name,
            inventory=self._by_uuid(),
        )

    def _edits(self, proven: Proven) -> ContainerEdits:
        container = containers_of(proven.pod)[proven.container]
        facts = ContainerFacts(
            pod_uid=proven.pod.metadata.uid,
            name=container.name,
            env={entry.name: entry.value for entry in container.env},
        )
        hook = find_hook(self._settings.hook_path)
        try:
            if hook is not None:
                prepare(hook, facts)
        except HookUnusable as error:
            self._books.refuse(proven.pod)
            raise CannotAllocate(f"pod {pod_name(proven.pod)}: {error}") from error
        return container_edits(proven.shares, self._by_uuid(), facts, self._allocation, hook)

    def _explain(self, sentence: str) -> str:
        stale = f" ({self._own.problem})" if self._own.problem else ""
        log.warning("Allocate refused: %s%s", sentence, stale)
        return sentence + stale

    def _log_served(self, proven: Proven, ids: Sequence[str]) -> None:
        name, gpus = pod_name(proven.pod), sorted(share.uuid for share in proven.shares)
        container = containers_of(proven.pod)[proven.container].name
        log.info("pod %s, container %s: served %s", name, container, ", ".join(gpus))
        if sorted(split_replica(identifier)[0] for identifier in ids) != gpus:
            log.warning("pod %s, container %s: kubelet had chosen other GPUs than decided", name, container)

    def _by_uuid(self) -> dict[DeviceUUID, Device]:
        return {device.uuid: device for device in self._inventory.devices}

    # The loops.

    async def _read(self) -> None:
        problem = ""
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="nvml") as thread:
            while True:
                try:
                    found = await asyncio.get_running_loop().run_in_executor(thread, self._read_gpus)
                    pause, problem = self._settings.read_seconds, ""
                except GpusUnavailable as error:
                    if error.needs_restart:
                        raise
                    if str(error) != problem:
                        problem = str(error)
                        log.warning("%s Trying again every %g s.", problem, self._settings.retry_seconds)
                    found = Inventory(devices=(), scores=self._inventory.scores)
                    pause = self._settings.retry_seconds
                self._take(found)
                await asyncio.sleep(pause)

    def _take(self, found: Inventory) -> None:
        devices = with_missing(self._inventory.devices, found.devices)
        inventory = Inventory(devices=devices, scores=found.scores)
        if inventory != self._inventory:
            healthy = sum(device.healthy for device in devices)
            log.info("%d GPUs, %d of them healthy", len(devices), healthy)
            self._inventory = inventory
            self._news.tell()

    async def _report(self) -> None:
        delay = _FIRST_RETRY_SECONDS
        while True:
            news = self._news.next()
            body = self._due_report()
            if body is None:
                await news.wait()
                continue
            try:
                await self._own.patch_node(body)
                log.info("reported %d GPUs on node %s", len(self._inventory.devices), self._own.name)
                delay, pause = _FIRST_RETRY_SECONDS, _REPORT_SECONDS
            except (ApiError, ApiUnreachable) as error:
                log.warning("the GPUs could not be reported: %s", error)
                delay, pause = min(2 * delay, _SLOWEST_RETRY_SECONDS), delay
            await asyncio.sleep(pause)

    def _due_report(self) -> Mapping[str, object] | None:
        if self._own.node is None or not self._inventory.devices:
            return None
        return report(self._own.node, self._inventory.devices, self._inventory.scores, AllocationMode.IMMEDIATE)

    async def _serve(self) -> None:
        """Kubelet hears of us once there is a GPU to share."""
        while not self._inventory.devices:
            await self._news.next().wait()
        await self._plugin.run()

    async def _catch_up(self) -> None:
        while True:
            news = self._news.next()
            self._books.catch_up()
            await news.wait()
