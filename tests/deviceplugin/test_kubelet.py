import asyncio
import itertools
import os
import shutil
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import grpc
import pytest

from deviceplugin.changes import Changes
from deviceplugin.container.edits import ContainerEdits, DeviceNode, Mount
from deviceplugin.kubelet import PluginServer
from deviceplugin.plugin_calls import CannotAllocate, ListedHints, NumaHints, allocate_response, list_response
from deviceplugin.plugin_sockets import SocketIdentity, identity
from deviceplugin.settings import KubeletSettings
from proto.devices import UNKNOWN_NUMA, Device
from proto.kubelet import deviceplugin_v1beta1_pb2 as pb
from tests.deviceplugin.gpus import PAIR, A, B
from tests.deviceplugin.registration import CALLS, TinyKubelet, kubelet_root
from tests.polling import until

OPTIONS = pb.DevicePluginOptions(get_preferred_allocation_available=True, pre_start_required=True)


class TwoGpus:
    """Serves whoever asks for one id, refuses everybody else."""

    pre_start_required = True

    def __init__(self) -> None:
        self.found: Sequence[Device] = PAIR
        self.offers = ListedHints(changes=Changes())

    def devices(self) -> Sequence[Device]:
        return self.found

    def find(self, *devices: Device) -> None:
        self.found = devices
        self.offers.changes.announce()

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        return sorted(available)[:size] if size == 1 else ()

    async def allocate(self, ids: Sequence[str]) -> ContainerEdits:
        if len(ids) != 1:
            raise CannotAllocate("pods default/a and default/b wait for 2 GPUs")
        return ContainerEdits(env={"NVIDIA_VISIBLE_DEVICES": ids[0]})

    async def pre_start(self, ids: Sequence[str]) -> None:
        if len(ids) != 1:
            raise CannotAllocate("nobody holds these 2 devices")


P = TypeVar("P", bound=PluginServer)


@asynccontextmanager
async def follow(plugin: P) -> AsyncIterator[P]:
    task = asyncio.create_task(plugin.run())
    try:
        yield plugin
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def serving(root: str) -> AsyncIterator[TwoGpus]:
    gpus = TwoGpus()
    async with follow(
        PluginServer(KubeletSettings(root=root, poll_seconds=0.01), gpus, CALLS, gpus.offers, draw=names())
    ):
        yield gpus


def names() -> Callable[[], str]:
    numbers = itertools.count(1)
    return lambda: f"{next(numbers):08x}"


def listed(message: object) -> pb.ListAndWatchResponse:
    assert isinstance(message, pb.ListAndWatchResponse)
    return message


async def test_kubelet_is_told_version_socket_resource_and_options() -> None:
    async with kubelet_root() as root:
        kubelet = TinyKubelet(root)
        await kubelet.start()
        async with serving(root):
            await kubelet.registered(1)
        assert kubelet.registrations == [
            pb.RegisterRequest(
                version="v1beta1",
                endpoint="nvidia-gpu.00000001.sock",
                resource_name="nvidia.com/gpu",
                options=OPTIONS,
            )
        ]
        await kubelet.stop()


async def test_a_kubelet_that_starts_is_registered_with_within_its_second_and_not_at_the_next_look() -> None:
    async with (
        kubelet_root() as root,
        follow(
            PluginServer(
                KubeletSettings(root=root, poll_seconds=3600), TwoGpus(), CALLS, ListedHints(changes=Changes())
            )
        ),
    ):
        for _ in range(2):
            kubelet = TinyKubelet(root)
            await kubelet.start()
            await kubelet.registered(1)
            await kubelet.stop()


async def test_every_call_is_answered_over_the_socket_and_the_socket_is_removed_at_the_end() -> None:
    async with kubelet_root() as root:
        kubelet = TinyKubelet(root)
        await kubelet.start()
        async with serving(root) as gpus:
            await kubelet.registered(1)
            async with kubelet.plugin() as plugin:
                options = await plugin.GetDevicePluginOptions(pb.Empty())
                assert options == OPTIONS

                stream = plugin.ListAndWatch(pb.Empty())
                first = listed(await stream.read())
                assert {device.ID: device.health for device in first.devices} == {
                    f"{gpu}-{number}": "Healthy" for gpu in (A, B) for number in range(3)
                }
                gpus.find(replace(PAIR[0], healthy=False), PAIR[1])
                second = listed(await stream.read())
                assert {device.ID for device in second.devices if device.health == "Unhealthy"} == {
                    f"{A}-{number}" for number in range(3)
                }

                wish = pb.ContainerPreferredAllocationRequest(available_deviceIDs=["y", "x"], allocation_size=1)
                other = pb.ContainerPreferredAllocationRequest(available_deviceIDs=["y", "x"], allocation_size=2)
                preferred = await plugin.GetPreferredAllocation(
                    pb.PreferredAllocationRequest(container_requests=[other, wish])
                )
                assert [list(answer.deviceIDs) for answer in preferred.container_responses] == [[], ["x"]]

                one = pb.ContainerAllocateRequest(devices_ids=["x"])
                answer = await plugin.Allocate(pb.AllocateRequest(container_requests=[one]))
                assert dict(answer.container_responses[0].envs) == {"NVIDIA_VISIBLE_DEVICES": "x"}

                two = pb.ContainerAllocateRequest(devices_ids=["x", "y"])
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await plugin.Allocate(pb.AllocateRequest(container_requests=[two]))
                assert refused.value.details() == "pods default/a and default/b wait for 2 GPUs"

                started = await plugin.PreStartContainer(pb.PreStartContainerRequest(devices_ids=["x"]))
                assert started == pb.PreStartContainerResponse()
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await plugin.PreStartContainer(pb.PreStartContainerRequest(devices_ids=["x", "y"]))
                assert refused.value.details() == "nobody holds these 2 devices"
        assert os.listdir(f"{root}/device-plugins") == ["kubelet.sock"]
        await kubelet.stop()


async def test_a_kubelet_that_comes_later_is_registered_with() -> None:
    async with kubelet_root() as root, follow(Hurried(root)) as plugin:
        await until(lambda: plugin.pauses)
        kubelet = TinyKubelet(root)
        await kubelet.start()
        await kubelet.registered(1)
        await kubelet.stop()


async def test_a_restarted_kubelet_that_emptied_its_folder_is_registered_with_at_once() -> None:
    async with kubelet_root() as root, serving(root):
        kubelet = TinyKubelet(root)
        await kubelet.start()
        await kubelet.registered(1)
        await kubelet.stop()
        await kubelet.start()
        await kubelet.registered(2)
        async with kubelet.plugin() as plugin:
            assert len(listed(await plugin.ListAndWatch(pb.Empty()).read()).devices) == 6
        await kubelet.stop()


async def test_two_dozen_restarts_of_kubelet_are_answered_each_once() -> None:
    async with kubelet_root() as root, serving(root):
        kubelet = TinyKubelet(root)
        for number in range(1, 25):
            await kubelet.start()
            await kubelet.registered(number)
            await kubelet.stop()
        await kubelet.start()
        await kubelet.registered(25)
        async with kubelet.plugin() as plugin:
            assert len(listed(await plugin.ListAndWatch(pb.Empty()).read()).devices) == 6
        assert len(kubelet.registrations) == 25
        await kubelet.stop()


async def test_a_plugin_socket_that_was_removed_comes_back() -> None:
    async with kubelet_root() as root, serving(root):
        kubelet = TinyKubelet(root)
        await kubelet.start()
        await kubelet.registered(1)
        os.unlink(f"{root}/device-plugins/nvidia-gpu.00000001.sock")
        await kubelet.registered(2)
        assert kubelet.registrations[-1].endpoint == "nvidia-gpu.00000002.sock"
        await until(lambda: os.path.exists(f"{root}/device-plugins/nvidia-gpu.00000002.sock"))
        await kubelet.stop()


async def test_a_plugin_that_serves_the_shared_name_again_and_again_is_left_in_peace_for_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with kubelet_root() as root:
        kubelet = TinyKubelet(root)
        await kubelet.start()
        async with serving(root):
            await kubelet.registered(1)
            told = "takes it over again and again; remove it from this node"
            while told not in caplog.text:
                with listening(f"{root}/device-plugins/nvidia-gpu.sock"):
                    await answered_or(lambda: told in caplog.text, kubelet)
        await kubelet.stop()


async def answered_or(fact: Callable[[], bool], kubelet: TinyKubelet) -> None:
    known = len(kubelet.registrations)
    await until(lambda: fact() or len(kubelet.registrations) > known)


@contextmanager
def listening(path: str) -> Iterator[None]:
    """As another plugin would, which removes the socket first that lies there."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path)
        made.listen()
        yield


async def test_sockets_that_dead_daemons_left_behind_are_removed_and_others_stay() -> None:
    async with kubelet_root() as root:
        kubelet = TinyKubelet(root)
        await kubelet.start()
        folder = f"{root}/device-plugins"
        left = ("nvidia-gpu.0a1b2c3d.sock", "nvidia-gpu.4e5f6071.sock")
        for name in (
            *left,
            "nvidia-gpu.sock",
            "nvidia-mig-1g.10gb.0a1b2c3d.sock",
            "nvidia-gpu.other.sock",
            "rdma.sock",
        ):
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(f"{folder}/{name}")
        async with serving(root):
            await kubelet.registered(1)
            await until(lambda: not any(os.path.exists(f"{folder}/{name}") for name in left))
            assert sorted(os.listdir(folder)) == [
                "kubelet.sock",
                "nvidia-gpu.00000001.sock",
                "nvidia-gpu.other.sock",
                "nvidia-gpu.sock",
                "nvidia-mig-1g.10gb.0a1b2c3d.sock",
                "rdma.sock",
            ]
        await kubelet.stop()


async def test_a_socket_that_became_another_processs_is_left_to_it() -> None:
    async with kubelet_root() as root:
        kubelet = TinyKubelet(root)
        await kubelet.start()
        path = f"{root}/device-plugins/nvidia-gpu.00000001.sock"
        settings = KubeletSettings(root=root, poll_seconds=0.01)
        async with follow(PluginServer(settings, TwoGpus(), CALLS, ListedHints(changes=Changes()), draw=names())):
            await kubelet.registered(1)
            # Away for the moment, so that it does not serve another.
            await kubelet.stop()
            with socket.socket(socket.AF_UNIX) as other:
                other.bind(f"{path}.other")
                os.replace(f"{path}.other", path)
        assert os.path.exists(path)


async def test_a_kubelet_that_listens_no_more_is_registered_with_again() -> None:
    """It gives a plugin up when the stream breaks off, and never calls it again."""
    unheard_seconds = 0.2
    settings = KubeletSettings(unheard_seconds=unheard_seconds)
    async with (
        kubelet_root() as root,
        follow(PluginServer(replace(settings, root=root), TwoGpus(), CALLS, ListedHints(changes=Changes()))),
    ):
        kubelet = TinyKubelet(root)
        await kubelet.start()
        await kubelet.registered(1)
        async with kubelet.plugin() as plugin:
            await plugin.ListAndWatch(pb.Empty()).read()
            await asyncio.sleep(2 * unheard_seconds)
            assert len(kubelet.registrations) == 1
        await kubelet.registered(2)
        await kubelet.stop()


async def test_a_left_over_socket_is_no_kubelet(caplog: pytest.LogCaptureFixture) -> None:
    async with kubelet_root() as root:
        os.makedirs(f"{root}/device-plugins")
        os.mknod(f"{root}/device-plugins/kubelet.sock")
        async with serving(root):
            await until(lambda: "kubelet did not take the registration" in caplog.text)
            kubelet = TinyKubelet(root)
            await kubelet.start()
            await kubelet.registered(1)
            await kubelet.stop()


class Hurried(PluginServer):
    """Writes down how long it would wait, and does not."""

    def __init__(self, root: str) -> None:
        super().__init__(KubeletSettings(root=root), TwoGpus(), CALLS, ListedHints(changes=Changes()))
        self.pauses: list[float] = []

    async def _pause(self, kubelet: SocketIdentity | None, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)


async def test_the_patience_with_a_left_over_socket_ends_when_a_new_kubelet_comes() -> None:
    """Kubelet refuses for good the pods that it finds a second later, if nobody has registered by then."""
    async with kubelet_root() as root, follow(Hurried(root)) as plugin:
        os.makedirs(f"{root}/device-plugins")
        path = f"{root}/device-plugins/kubelet.sock"
        with bound_socket(path), bound_socket(f"{path}.new"):
            await until(lambda: plugin.pauses.count(5.0) > 1)
            os.replace(f"{path}.new", path)
            until_now = len(plugin.pauses)
            await until(lambda: 0.4 in plugin.pauses[until_now:])
        grown = [pause for pause in plugin.pauses[:until_now] if pause > 0.2]
        assert grown[:6] == [0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


async def test_a_pause_ends_with_the_left_over_socket() -> None:
    async with kubelet_root() as root:
        settings = KubeletSettings(root=root, poll_seconds=0.01)
        os.makedirs(f"{root}/device-plugins")
        with bound_socket(settings.kubelet_socket):
            pause = PluginServer(settings, TwoGpus(), CALLS, ListedHints(changes=Changes()))._pause(
                identity(settings.kubelet_socket), 3600.0
            )
            waiting = asyncio.create_task(pause)
            await asyncio.sleep(0)
            os.unlink(settings.kubelet_socket)
            await waiting


@contextmanager
def bound_socket(path: str) -> Iterator[socket.socket]:
    """On which nobody listens yet."""
    with socket.socket(socket.AF_UNIX) as made:
        made.setblocking(False)
        made.bind(path)
        yield made


def test_numa_nodes_are_told_where_they_are_known_and_wanted() -> None:
    near, nowhere = replace(PAIR[0], replicas=1, numa=1), replace(PAIR[1], replicas=1, numa=UNKNOWN_NUMA)
    hinted = list_response((near, nowhere), NumaHints())
    assert hinted.devices[0].topology == pb.TopologyInfo(nodes=[pb.NUMANode(ID=1)])
    assert [device.HasField("topology") for device in hinted.devices] == [True, False]
    silent = list_response((near, nowhere), None)
    assert not any(device.HasField("topology") for device in silent.devices)


def test_every_kind_of_edit_has_its_place_in_the_answer() -> None:
    edits = ContainerEdits(
        env={"A": "1"},
        mounts=(Mount(container_path="/in", host_path="/out", read_only=True),),
        devices=(DeviceNode(path="/dev/nvidia0"), DeviceNode(path="/dev/nvidia1", host_path="/driver/dev/nvidia1")),
        annotations={"k": "v"},
        cdi_devices=("vendor/class=name",),
    )
    assert allocate_response(edits) == pb.ContainerAllocateResponse(
        envs={"A": "1"},
        mounts=[pb.Mount(container_path="/in", host_path="/out", read_only=True)],
        devices=[
            pb.DeviceSpec(container_path="/dev/nvidia0", host_path="/dev/nvidia0", permissions="rw"),
            pb.DeviceSpec(container_path="/dev/nvidia1", host_path="/driver/dev/nvidia1", permissions="rw"),
        ],
        annotations={"k": "v"},
        cdi_devices=[pb.CDIDevice(name="vendor/class=name")],
    )


async def test_a_folder_that_was_replaced_by_something_else_ends_nobody() -> None:
    """As is one that can no longer be written: the socket stays behind, and kubelet removes it at its next start."""
    async with kubelet_root() as root:
        kubelet = TinyKubelet(root)
        await kubelet.start()
        async with serving(root):
            await kubelet.registered(1)
            await kubelet.stop()
            shutil.rmtree(kubelet.folder)
            Path(kubelet.folder).touch()
