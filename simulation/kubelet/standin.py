"""One node's kubelet: registers the Node, admits bound pods one at a time, creates their containers on paper."""

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from secrets import token_hex

from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiError, ApiUnreachable
from proto.kubernetes.objects import NODES, PODS, Container, Pod
from proto.kubernetes.reflector import Interrupted, ObjectApplied, ObjectRemoved, Replaced, reflect
from simulation.kubelet import status
from simulation.kubelet.admission import check_totals
from simulation.kubelet.apiserver import NodeApi, StatusNotWritten
from simulation.kubelet.container import (
    CdiError,
    CdiOrder,
    CdiSpec,
    CreatedContainer,
    Phase,
    create_container,
    decode_cdi_spec,
)
from simulation.kubelet.device_ids import AdmissionRefused
from simulation.kubelet.device_manager import DeviceManager, PreStartRefused
from simulation.kubelet.lives import Life
from simulation.kubelet.pod_resources import PodResourcesServer
from simulation.kubelet.runtime_hooks import remove_group, run_hooks

_FIRST_RETRY_SECONDS = 0.2
_LONGEST_RETRY_SECONDS = 5.0
_FIRST_CRASH_SECONDS, _LONGEST_CRASH_SECONDS = 1.0, 30.0
"""The pause before containers start again; kubelet's are ten times as long."""
_NODE_STATUS_SECONDS = 10.0
"""Kubelet's nodeStatusUpdateFrequency: a Node that was created again gets its devices back."""


class KubeletStandIn:
    """`created` holds, by pod UID, the containers in creation order; `freed` is called for every pod that left."""

    def __init__(
        self,
        node_name: str,
        root: Path,
        api: ApiServer,
        *,
        api_url: str,
        now: Callable[[], datetime],
        labels: Mapping[str, str] | None = None,
        cdi_directories: Iterable[Path] = (),
        runtime_version: str = "simulated://1",
        cdi_order: CdiOrder = CdiOrder.LAST,
        cdi_lags: bool = False,
        image_env: Mapping[str, str] | None = None,
        plugins_by_path: bool = True,
        life: Callable[[Pod], Life | None] = lambda _: None,
        cgroups: Path | None = None,
    ) -> None:
        """With `cdi_lags` the runtime's cache of CDI specs sees a change too late, as containerd's and
        CRI-O's may; each container sees the folder as it was for the one before. `image_env` is that of every image.
        `plugins_by_path`: see DeviceManager. `life` returns how a pod ends by itself. Below `cgroups` it makes control
        groups, and runs the hooks of containers.
        """
        self.node_name = node_name
        self.root = root
        self.devices = DeviceManager(root / "device-plugins", by_path=plugins_by_path)
        self.created: dict[str, list[CreatedContainer]] = {}
        self._running: dict[str, dict[str, CreatedContainer]] = {}
        self._pods: dict[str, Pod] = {}
        self.pod_resources = PodResourcesServer(
            root / "pod-resources", self.devices, lambda: tuple(self._pods.values())
        )
        self._api = api
        self._writes = NodeApi(api_url, node_name)
        self._now = now
        self._labels = dict(labels or {})
        self._cdi_directories = tuple(cdi_directories)
        self._runtime_version = runtime_version
        self._cdi_order = cdi_order
        self._cdi_lags = cdi_lags
        self._cached: list[CdiSpec] = []
        self._image_env = dict(image_env or {})
        self._cgroups = cgroups
        self._admissions: asyncio.Queue[Pod] = asyncio.Queue()
        self._seen: set[str] = set()
        self._starts: dict[str, asyncio.Task[None]] = {}
        self._endings: dict[str, asyncio.Task[None]] = {}
        self._lives: dict[str, asyncio.Task[None]] = {}
        self.life = life
        self._loops: list[asyncio.Task[None]] = []
        self._events = 0

    async def start(self) -> None:
        """Returns once the sockets listen and the Node exists."""
        node = status.node_object(self.node_name, self._labels, self._runtime_version, self._now())
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
        return {uid: made for uid, made in self._running.items() if uid in self._pods and not self._pods[uid].has_ended}

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
        made = await self._create(pod, container, phase)
        self._note(pod_uid, made)
        return made

    def _note(self, pod_uid: str, made: CreatedContainer) -> None:
        self.created.setdefault(pod_uid, []).append(made)
        self._running.setdefault(pod_uid, {})[made.name] = made

    def _end(self, pod_uid: str) -> None:
        """Ends the pod's containers and gives its devices back."""
        self._pods.pop(pod_uid, None)
        self._running.pop(pod_uid, None)
        if self._cgroups is not None:
            shutil.rmtree(self._cgroups / "kubepods" / f"pod{pod_uid}", ignore_errors=True)
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
                await asyncio.sleep(_FIRST_RETRY_SECONDS)
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
            await self._write_status(pod, status.ended(pod, self._now()))
        await self._insist(lambda: self._writes.finish_deletion(pod))
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
                await self._refuse(pod, refusal)
                continue
            if pod.metadata.uid not in self._seen:
                # Deleted while the plugin answered.
                self.devices.release(pod.metadata.uid)
                continue
            self._pods[pod.metadata.uid] = pod
            self._starts[pod.metadata.uid] = asyncio.create_task(self._create_containers(pod))

    async def _create_containers(self, pod: Pod) -> None:
        """Creates init containers first; each is tried until it can be created. Those that are there stay."""
        made = self._running.setdefault(pod.metadata.uid, {})
        ordered: list[tuple[Container, Phase]] = [(container, "init") for container in pod.spec.init_containers]
        ordered += [(container, "app") for container in pod.spec.containers]
        for container, phase in ordered:
            if container.name in made:
                continue
            delay_seconds = _FIRST_RETRY_SECONDS
            while True:
                try:
                    await self.devices.pre_start(pod.metadata.uid, container.name)
                    self._note(pod.metadata.uid, await self._create(pod, container, phase))
                    break
                except (PreStartRefused, CdiError) as refusal:
                    # The runtime refuses what kubelet had no objection to.
                    reason = "CreateContainerError" if isinstance(refusal, CdiError) else "CreateContainerConfigError"
                    await self._report_waiting(pod, container.name, list(made), reason, str(refusal))
                    await asyncio.sleep(delay_seconds)
                    delay_seconds = min(2 * delay_seconds, _LONGEST_RETRY_SECONDS)
        await self._write_status(pod, status.running(pod, self._now(), ids=self._ids(pod)))
        if (life := self.life(pod)) is not None:
            self._lives[pod.metadata.uid] = asyncio.create_task(self._live(pod, life))

    def _ids(self, pod: Pod) -> Mapping[str, str]:
        """Returns the ids of the pod's containers by name."""
        return {name: made.container_id for name, made in self._running[pod.metadata.uid].items()}

    async def _live(self, pod: Pod, life: Life) -> None:
        """Lets the containers run for their time, again and again where they are started again; then frees devices."""
        restarts, pause = 0, _FIRST_CRASH_SECONDS
        while True:
            since = self._now()
            await asyncio.sleep(life.seconds)
            if not life.starts_again:
                break
            restarts += 1
            await self._write_status(pod, status.crashed(pod, self._now(), restarts))
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_CRASH_SECONDS)
            for container in pod.spec.containers:
                with suppress(PreStartRefused, CdiError):
                    await self.restart_container(pod.metadata.uid, container.name)
            await self._write_status(pod, status.running(pod, self._now(), restarts, self._ids(pod)))
        codes = {name: ending.exit_code for name, ending in life.endings.items()}
        await self._write_status(pod, status.ended(pod, self._now(), codes, since))
        self._end(pod.metadata.uid)

    async def _create(self, pod: Pod, container: Container, phase: Phase) -> CreatedContainer:
        held = [one for one in self.devices.held(pod.metadata.uid) if one.container == container.name]
        ids = [name for one in held for name in one.ids]
        made = create_container(
            *(container, phase, ids, [one.response for one in held], self._cdi_specs()),
            order=self._cdi_order,
            image_env=self._image_env,
            has_file=os.path.lexists,
        )
        if self._cgroups is None:
            return made
        before = self._running.get(pod.metadata.uid, {}).get(container.name)
        if before is not None:
            remove_group(self._cgroups / "kubepods", pod.metadata.uid, before.container_id)
        made = replace(made, container_id=token_hex(32))
        await run_hooks(made.hooks, self._cgroups / "kubepods", pod.metadata.uid, made.container_id)
        return made

    def _cdi_specs(self) -> list[CdiSpec]:
        files = [file for directory in self._cdi_directories for file in sorted(directory.glob("*.json"))]
        found = [decode_cdi_spec(file.read_bytes()) for file in files]
        before, self._cached = self._cached, found
        return before if self._cdi_lags else found

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

    async def _refuse(self, pod: Pod, refusal: AdmissionRefused) -> None:
        message, body = str(refusal), status.refused(str(refusal), refusal.reason)
        await self._record_event(pod, refusal.reason, message)
        await self._write_status(pod, body)

    async def _report_waiting(self, pod: Pod, container: str, started: list[str], reason: str, message: str) -> None:
        await self._record_event(pod, "Failed", f"Error: {message}")
        await self._write_status(
            pod, status.waiting(pod, container, started, self._now(), reason=reason, message=message)
        )

    async def _record_event(self, pod: Pod, reason: str, message: str) -> None:
        self._events += 1
        record = status.event(pod, self.node_name, serial=self._events, reason=reason, message=message, at=self._now())
        with suppress(StatusNotWritten):
            await self._writes.record_event(pod.metadata.namespace, record)

    async def _write_status(self, pod: Pod, body: status.Body) -> None:
        await self._insist(lambda: self._writes.patch_pod_status(pod, body))

    async def _insist(self, write: Callable[[], Awaitable[None]]) -> None:
        """Waits until the API server takes it."""
        delay_seconds = _FIRST_RETRY_SECONDS
        while True:
            try:
                return await write()
            except StatusNotWritten:
                await asyncio.sleep(delay_seconds)
                delay_seconds = min(2 * delay_seconds, _LONGEST_RETRY_SECONDS)
