"""One node's kubelet: registers the Node, admits bound pods one at a time, creates their containers on paper."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiError, ApiUnreachable
from proto.kubernetes.objects import NODES, PODS, Container, Pod
from proto.kubernetes.reflector import Interrupted, ObjectApplied, ObjectRemoved, Replaced, reflect
from simulation.kubelet import status
from simulation.kubelet.apiserver import NodeApi, StatusNotWritten
from simulation.kubelet.container import CdiError, CreatedContainer, Phase
from simulation.kubelet.device_ids import AdmissionRefused, check_totals
from simulation.kubelet.device_manager import DeviceManager, PreStartRefused
from simulation.kubelet.lives import Life
from simulation.kubelet.pod_resources import PodResourcesServer
from simulation.kubelet.reports import FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS, PodReports
from simulation.kubelet.runtime import PaperRuntime, StandInSettings

_FIRST_CRASH_SECONDS, _LONGEST_CRASH_SECONDS = 1.0, 30.0
"""The pause before containers start again; kubelet's are ten times as long."""
_NODE_STATUS_SECONDS = 10.0
"""Kubelet's nodeStatusUpdateFrequency: a Node that was created again gets its devices back."""


class KubeletStandIn:
    """`created` holds, by pod UID, the containers in creation order."""

    def __init__(
        self,
        node_name: str,
        root: Path,
        api: ApiServer,
        settings: StandInSettings,
        *,
        now: Callable[[], datetime],
        life: Callable[[Pod], Life | None] = lambda _: None,
    ) -> None:
        """`life` returns how a pod ends by itself."""
        self.node_name = node_name
        self.root = root
        self.life = life
        self.devices = DeviceManager(root / "device-plugins", by_path=settings.plugins_by_path)
        self._pods: dict[str, Pod] = {}
        self.pod_resources = PodResourcesServer(
            root / "pod-resources", self.devices, lambda: tuple(self._pods.values())
        )
        self._runtime = PaperRuntime(settings, self.devices)
        self.created = self._runtime.created
        self._api = api
        self._writes = NodeApi(settings.api_url, node_name)
        self._reports = PodReports(self._writes, node_name, now)
        self._now = now
        self._settings = settings
        self._admissions: asyncio.Queue[Pod] = asyncio.Queue()
        self._seen: set[str] = set()
        self._starts: dict[str, asyncio.Task[None]] = {}
        self._endings: dict[str, asyncio.Task[None]] = {}
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._loops: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Returns once the sockets listen and the Node exists."""
        node = status.node_object(self.node_name, self._settings.labels, self._settings.runtime_version, self._now())
        await self._writes.register_node(node, self.node_name)
        await self.come_back(pods_after_seconds=0)

    async def stop(self) -> None:
        await self.go_down()
        await self._writes.close()

    async def go_down(self) -> None:
        """Kubelet's process is killed: containers run on, and what its checkpoint does not hold is forgotten."""
        unfinished = {uid for uid, start in self._starts.items() if not start.done()}
        tasks = [*self._loops, *self._starts.values(), *self._endings.values(), *self._lives.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._loops, self._starts, self._endings, self._lives, self._admissions = [], {}, {}, {}, asyncio.Queue()
        self._pods = {uid: self._pods[uid] for uid in self.running()}
        self._seen = set(self._pods) - unfinished
        await self.pod_resources.stop()
        await self.devices.stop()

    async def come_back(self, *, pods_after_seconds: float = 1.0) -> None:
        """Kubelet's process is started. It looks at its pods a second after it has opened its sockets."""
        await self.devices.start()
        await self.pod_resources.start()
        await asyncio.sleep(pods_after_seconds)
        loops = (self._report_devices(), self._watch_pods(), self._admit_pods())
        self._loops = [asyncio.create_task(loop) for loop in loops]

    def running(self) -> dict[str, dict[str, CreatedContainer]]:
        """Returns the containers of the pods that have not ended, by pod UID and name."""
        alive = {uid for uid, pod in self._pods.items() if not pod.has_ended}
        return {uid: made for uid, made in self._runtime.there.items() if uid in alive}

    async def restart(self) -> None:
        """Kubelet's process restarts: new sockets, plugins forgotten until they register again, pods kept."""
        await self.pod_resources.stop()
        await self.devices.stop()
        await self.devices.start()
        await self.pod_resources.start()

    async def restart_container(self, pod_uid: str, name: str) -> CreatedContainer:
        """Creates an ended container again, as its pod's restart policy may require. Raises PreStartRefused or
        CdiError, upon which kubelet would try again later.
        """
        pod = self._pods[pod_uid]
        phase: Phase = "init" if any(one.name == name for one in pod.spec.init_containers) else "app"
        container = next(one for one in pod.all_containers if one.name == name)
        await self.devices.pre_start(pod_uid, name)
        return await self._runtime.create(pod_uid, container, phase)

    def _end(self, pod_uid: str) -> None:
        """Ends the pod's containers and gives its devices back."""
        self._pods.pop(pod_uid, None)
        self._runtime.end(pod_uid)
        self.devices.release(pod_uid)

    async def _report_devices(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_NODE_STATUS_SECONDS):
                    await self.devices.changed.wait()
            self.devices.changed.clear()
            capacity = self.devices.capacity()
            try:
                await self._writes.patch_node_status(self.node_name, status.device_capacity(capacity))
            except StatusNotWritten:
                await asyncio.sleep(FIRST_RETRY_SECONDS)
                self.devices.changed.set()

    async def _watch_pods(self) -> None:
        async for change in reflect(self._api, PODS, field_selector=f"spec.nodeName={self.node_name}"):
            match change:
                case Replaced(objects=pods):
                    gone = self._known_uids() - {pod.metadata.uid for pod in pods}
                    for uid in gone:
                        await self._forget(uid)
                    for pod in pods:
                        await self._apply(pod)
                case ObjectApplied(object=pod):
                    await self._apply(pod)
                case ObjectRemoved(object=pod):
                    await self._forget(pod.metadata.uid)
                case Interrupted():
                    pass

    async def _apply(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        if pod.metadata.deletion_timestamp is not None:
            await self._forget(uid)
            if uid not in self._endings:
                self._endings[uid] = asyncio.create_task(self._finish_deletion(pod))
        elif uid not in self._seen and pod.is_pending:
            self._seen.add(uid)
            await self._admissions.put(pod)
        elif uid in self._pods or pod.is_running:
            self._seen.add(uid)
            self._pods[uid] = pod
        elif pod.has_ended:
            self.devices.release(uid)

    async def _finish_deletion(self, pod: Pod) -> None:
        if pod.is_running:
            await self._reports.write(pod, status.ended(pod, self._now()))
        await self._reports.deleted(pod)
        self._endings.pop(pod.metadata.uid, None)

    def _known_uids(self) -> set[str]:
        """Returns the uids also of pods that only the checkpoint has, or that still wait for admission."""
        return self._seen | self._pods.keys() | {held.pod_uid for held in self.devices.held()}

    async def _forget(self, uid: str) -> None:
        for task in (self._starts.pop(uid, None), self._lives.pop(uid, None)):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._seen.discard(uid)
        self._end(uid)

    async def _admit_pods(self) -> None:
        """Starts strictly one pod after the other, as kubelet's sync loop does."""
        while True:
            pod = await self._admissions.get()
            if pod.metadata.uid not in self._seen:
                continue
            try:
                await self.devices.admit(pod)
                await self._check_totals(pod)
            except AdmissionRefused as refusal:
                await self._reports.refused(pod, refusal)
                continue
            if pod.metadata.uid not in self._seen:
                # Deleted while the plugin answered.
                self.devices.release(pod.metadata.uid)
                continue
            self._pods[pod.metadata.uid] = pod
            self._starts[pod.metadata.uid] = asyncio.create_task(self._create_containers(pod))

    async def _create_containers(self, pod: Pod) -> None:
        """Creates init containers first; each is tried until it can be created. Those that are there stay."""
        made = self._runtime.of(pod.metadata.uid)
        ordered: list[tuple[Container, Phase]] = [(container, "init") for container in pod.spec.init_containers]
        ordered += [(container, "app") for container in pod.spec.containers]
        for container, phase in ordered:
            if container.name in made:
                continue
            delay_seconds = FIRST_RETRY_SECONDS
            while True:
                try:
                    await self.devices.pre_start(pod.metadata.uid, container.name)
                    await self._runtime.create(pod.metadata.uid, container, phase)
                    break
                except (PreStartRefused, CdiError) as refusal:
                    # The runtime refuses what kubelet had no objection to.
                    reason = "CreateContainerError" if isinstance(refusal, CdiError) else "CreateContainerConfigError"
                    await self._reports.waiting(pod, container.name, list(made), reason, str(refusal))
                    await asyncio.sleep(delay_seconds)
                    delay_seconds = min(2 * delay_seconds, LONGEST_RETRY_SECONDS)
        await self._reports.write(pod, status.running(pod, self._now(), ids=self._runtime.ids(pod.metadata.uid)))
        if (life := self.life(pod)) is not None:
            self._lives[pod.metadata.uid] = asyncio.create_task(self._live(pod, life))

    async def _live(self, pod: Pod, life: Life) -> None:
        """Lets the containers run for their time, again and again where they are started again; then frees devices."""
        restarts, pause = 0, _FIRST_CRASH_SECONDS
        while True:
            since = self._now()
            await asyncio.sleep(life.seconds)
            if not life.starts_again:
                break
            restarts += 1
            await self._reports.write(pod, status.crashed(pod, self._now(), restarts))
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_CRASH_SECONDS)
            for container in pod.spec.containers:
                with suppress(PreStartRefused, CdiError):
                    await self.restart_container(pod.metadata.uid, container.name)
            ids = self._runtime.ids(pod.metadata.uid)
            await self._reports.write(pod, status.running(pod, self._now(), restarts, ids))
        codes = {name: ending.exit_code for name, ending in life.endings.items()}
        await self._reports.write(pod, status.ended(pod, self._now(), codes, since))
        self._end(pod.metadata.uid)

    async def _check_totals(self, pod: Pod) -> None:
        """Raises AdmissionRefused and gives the devices back. While the API server is away nothing is checked."""
        try:
            node = await self._api.get(NODES, self.node_name)
        except (ApiError, ApiUnreachable):
            return
        others = [each for uid, each in self._pods.items() if uid != pod.metadata.uid]
        try:
            check_totals(pod, others, node, self.devices.capacity().keys())
        except AdmissionRefused:
            self.devices.release(pod.metadata.uid)
            raise
