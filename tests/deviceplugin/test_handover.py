"""One daemon takes over from another, as while a DaemonSet with `maxSurge` is rolled out: kubelet refuses no pod."""

import asyncio
import fcntl
import itertools
import logging
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from deviceplugin.changes import Changes
from deviceplugin.container.edits import ContainerEdits
from deviceplugin.kubelet import PluginServer
from deviceplugin.plugin_calls import ListedHints
from deviceplugin.settings import KubeletSettings
from proto.devices import Device
from proto.kubernetes.objects import Container, ObjectMeta, Pod, PodSpec, Resources
from simulation.kubelet.device_ids import AdmissionRefused
from simulation.kubelet.device_manager import DeviceManager
from tests.deviceplugin.gpus import PAIR
from tests.deviceplugin.registration import CALLS, kubelet_root
from tests.deviceplugin.test_kubelet import follow
from tests.polling import until

GPU = "nvidia.com/gpu"


class Steady:
    """The same GPUs for ever, and who was called."""

    pre_start_required = False

    def __init__(self) -> None:
        self.allocated = 0

    def devices(self) -> Sequence[Device]:
        return PAIR

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        return ()

    async def allocate(self, ids: Sequence[str]) -> ContainerEdits:
        self.allocated += 1
        return ContainerEdits(env={"NVIDIA_VISIBLE_DEVICES": ",".join(ids)})

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Never asked."""


@pytest.fixture(params=[True, False], ids=["from 1.37 on", "before 1.37"])
async def kubelet(request: pytest.FixtureRequest) -> AsyncIterator[DeviceManager]:
    async with kubelet_root() as root:
        manager = DeviceManager(Path(root, "device-plugins"), by_path=request.param)
        await manager.start()
        yield manager
        await manager.stop()


class Stream:
    """Pods that come and go, each for one GPU; the refusals."""

    def __init__(self, kubelet: DeviceManager) -> None:
        self._kubelet = kubelet
        self.admitted = 0
        self.refusals: list[str] = []

    async def run(self) -> None:
        container = Container(name="main", resources=Resources(limits={GPU: "1"}))
        for number in itertools.count():
            uid = f"pod-{number}"
            try:
                await self._kubelet.admit(
                    Pod(metadata=ObjectMeta(name=uid, uid=uid), spec=PodSpec(containers=[container]))
                )
                self.admitted += 1
            except AdmissionRefused as refusal:
                self.refusals.append(str(refusal))
            self._kubelet.release(uid)
            await asyncio.sleep(0)

    async def some_more(self) -> None:
        known = self.admitted
        await until(lambda: self.admitted > known + 20)


@asynccontextmanager
async def streaming(kubelet: DeviceManager) -> AsyncIterator[Stream]:
    stream = Stream(kubelet)
    task = asyncio.create_task(stream.run())
    try:
        yield stream
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def daemon(kubelet: DeviceManager, gpus: Steady, resource: str = GPU) -> PluginServer:
    root = str(kubelet.directory.parent)
    settings = KubeletSettings(root=root, resource_name=resource, poll_seconds=0.01, settled_seconds=0.5)
    return PluginServer(settings, gpus, CALLS, ListedHints(changes=Changes()))


async def ready(daemon: PluginServer, kubelet: DeviceManager) -> None:
    """The next one may end."""
    await until(lambda: daemon.is_registered and kubelet.capacity().get(GPU) == (6, 6))


async def test_no_pod_is_refused_while_daemons_replace_each_other(kubelet: DeviceManager) -> None:
    async with AsyncExitStack() as last:
        first = Steady()
        going = AsyncExitStack()
        await ready(await going.enter_async_context(follow(daemon(kubelet, first))), kubelet)
        async with streaming(kubelet) as stream:
            await stream.some_more()
            for _ in range(5):
                gpus, coming = Steady(), AsyncExitStack()
                await ready(await coming.enter_async_context(follow(daemon(kubelet, gpus))), kubelet)
                await stream.some_more()
                await going.aclose()
                await stream.some_more()
                going = coming
                assert gpus.allocated
            assert stream.refusals == []
        last.push_async_exit(going)
    await until(lambda: kubelet.capacity() == {GPU: (6, 0)})


async def test_a_daemon_whose_successor_ends_first_is_called_again(kubelet: DeviceManager) -> None:
    gpus = Steady()
    async with follow(daemon(kubelet, gpus)) as staying, streaming(kubelet) as stream:
        await ready(staying, kubelet)
        async with follow(daemon(kubelet, Steady())) as coming:
            await ready(coming, kubelet)
            await stream.some_more()
        known = gpus.allocated
        await until(lambda: gpus.allocated > known + 20)


async def test_kubelet_restarts_while_two_daemons_are_there(kubelet: DeviceManager) -> None:
    async with follow(daemon(kubelet, Steady())) as staying:
        async with follow(daemon(kubelet, Steady())) as going:
            await ready(going, kubelet)
            await kubelet.stop()
            await kubelet.start()
            await ready(staying, kubelet)
            await ready(going, kubelet)
        async with streaming(kubelet) as stream:
            await stream.some_more()
        await ready(staying, kubelet)


async def test_resources_of_one_node_keep_each_other_from_no_registration(
    kubelet: DeviceManager, caplog: pytest.LogCaptureFixture
) -> None:
    """Kubelet refuses pods whose resource is not registered a second after its restart."""
    names = (GPU, *(f"nvidia.com/mig-{number}g.5gb" for number in range(1, 8)))
    async with AsyncExitStack() as stack:
        daemons = [await stack.enter_async_context(follow(daemon(kubelet, Steady(), name))) for name in names]
        await until(lambda: all(each.is_registered for each in daemons))
        await kubelet.stop()
        await kubelet.start()
        await until(lambda: kubelet.capacity() == dict.fromkeys(names, (6, 6)))
    assert [each.getMessage() for each in caplog.records if each.getMessage().startswith("another")] == []


async def test_a_registration_waits_while_another_daemon_registers(
    kubelet: DeviceManager, caplog: pytest.LogCaptureFixture
) -> None:
    folder = os.open(kubelet.directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        async with follow(daemon(kubelet, Steady())) as waiting:
            await until(lambda: [each for each in caplog.records if each.levelno >= logging.WARNING])
            assert not waiting.is_registered
            fcntl.flock(folder, fcntl.LOCK_UN)
            await ready(waiting, kubelet)
    finally:
        os.close(folder)
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING] == [
        f"another registration goes on in {kubelet.directory}, so {GPU} waits; trying again"
    ]
