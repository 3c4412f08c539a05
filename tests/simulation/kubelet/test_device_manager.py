"""The device manager against a real gRPC device plugin."""

import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from grpc import aio

from proto.kubelet import deviceplugin_v1beta1_pb2 as wire
from proto.kubernetes.objects import Container, Resources
from proto.podresources import podresources_v1_pb2 as resources_wire
from proto.podresources.podresources_v1_pb2_grpc import PodResourcesListerStub
from simulation.kubelet.device_ids import AdmissionRefused
from simulation.kubelet.device_manager import DeviceManager, PreStartRefused
from simulation.kubelet.pod_resources import PodResourcesServer
from tests.builders import pod
from tests.polling import until
from tests.simulation.kubelet.plugin import RESOURCE, SmallPlugin


def asking(name: str, count: int, restart_policy: str = "") -> Container:
    limits: dict[str, str | int | float] = {RESOURCE: str(count)} if count else {}
    return Container(name=name, resources=Resources(limits=limits), restart_policy=restart_policy)


@pytest.fixture
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="tg", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def manager(directory: Path) -> AsyncIterator[DeviceManager]:
    manager = DeviceManager(directory)
    await manager.start()
    yield manager
    await manager.stop()


async def registered(
    manager: DeviceManager, *, preferred: tuple[str, ...] = (), pre_start: bool = False
) -> SmallPlugin:
    plugin = SmallPlugin(manager.directory, preferred=preferred, pre_start=pre_start)
    await plugin.start()
    await until(lambda: manager.capacity().get(RESOURCE) == (4, 4))
    return plugin


async def test_health_from_the_stream_becomes_capacity(manager: DeviceManager) -> None:
    plugin = await registered(manager)
    plugin.set_health("a-0", "Unhealthy")
    await until(lambda: manager.capacity() == {RESOURCE: (4, 3)})
    await plugin.stop()
    await until(lambda: manager.capacity() == {RESOURCE: (4, 0)})


class EndingPlugin(SmallPlugin):
    """It takes no call after the first."""

    ending: asyncio.Task[None]

    async def GetDevicePluginOptions(self, request: wire.Empty, context: Any) -> wire.DevicePluginOptions:  # noqa: N802
        self.ending = asyncio.create_task(self.stop(grace_seconds=5))
        self.socket.unlink()
        return await super().GetDevicePluginOptions(request, context)


async def test_a_plugin_that_ends_before_its_devices_are_listed_is_gone(manager: DeviceManager) -> None:
    plugin, ending = await registered(manager), EndingPlugin(manager.directory, endpoint="ending.sock")
    await ending.start()
    await ending.ending
    await plugin.stop()
    await until(lambda: manager.capacity() == {RESOURCE: (4, 0)})


async def test_the_plugins_preference_is_taken(manager: DeviceManager) -> None:
    plugin = await registered(manager, preferred=("b-1", "a-1"))
    await manager.admit(pod(asking("c", 2), uid="p"))
    assert plugin.calls == [("GetPreferredAllocation", ("a-0", "a-1", "b-0", "b-1")), ("Allocate", ("b-1", "a-1"))]
    await plugin.stop()


async def test_app_containers_use_the_ids_of_finished_init_containers_again(manager: DeviceManager) -> None:
    plugin = await registered(manager)
    await manager.admit(pod(asking("one", 1), asking("two", 2), inits=(asking("init", 2),), uid="p"))
    assert plugin.calls == [
        ("Allocate", ("a-0", "a-1")),
        ("Allocate", ("a-0",)),
        ("Allocate", ("a-1", "b-0")),
    ]
    await plugin.stop()


async def test_a_sidecar_keeps_its_ids(manager: DeviceManager) -> None:
    plugin = await registered(manager)
    await manager.admit(pod(asking("app", 1), inits=(asking("sidecar", 1, "Always"),), uid="p"))
    assert plugin.calls == [("Allocate", ("a-0",)), ("Allocate", ("a-1",))]
    await plugin.stop()


async def test_a_refused_pod_holds_nothing_and_carries_the_plugins_words(manager: DeviceManager) -> None:
    plugin = await registered(manager)
    plugin.refuse_with = "two pods match"
    with pytest.raises(AdmissionRefused) as refusal:
        await manager.admit(pod(asking("c", 1), uid="p"))
    assert str(refusal.value) == (
        "Allocate failed due to rpc error: code = FailedPrecondition desc = two pods match, which is unexpected"
    )
    assert manager.held() == ()
    await plugin.stop()


async def test_more_than_is_free_is_refused_until_a_pod_leaves(manager: DeviceManager) -> None:
    plugin = await registered(manager)
    await manager.admit(pod(asking("c", 3), name="first", uid="first"))
    with pytest.raises(AdmissionRefused, match="Requested: 2, Available: 1"):
        await manager.admit(pod(asking("c", 2), name="second", uid="second"))
    manager.release("first")
    await manager.admit(pod(asking("c", 2), name="second", uid="second"))
    await plugin.stop()


async def test_pre_start_is_called_with_the_allocated_ids_and_its_failure_is_told(manager: DeviceManager) -> None:
    plugin = await registered(manager, pre_start=True)
    await manager.admit(pod(asking("c", 1), uid="p"))
    plugin.pre_start_failures = 1
    with pytest.raises(PreStartRefused, match=r"PreStartContainer rpc failed with err: .* whose ids are these"):
        await manager.pre_start("p", "c")
    await manager.pre_start("p", "c")
    assert plugin.calls[1:] == [("PreStartContainer", ("a-0",))] * 2
    await plugin.stop()


async def test_the_checkpoint_names_pod_container_and_ids(manager: DeviceManager) -> None:
    plugin = await registered(manager)
    await manager.admit(pod(asking("c", 2), uid="p"))
    data = json.loads((manager.directory / "kubelet_internal_checkpoint").read_text())["Data"]
    entry = data["PodDeviceEntries"][0]
    assert (entry["PodUID"], entry["ContainerName"], entry["DeviceIDs"]) == ("p", "c", {"-1": ["a-0", "a-1"]})
    assert data["RegisteredDevices"] == {RESOURCE: ["a-0", "a-1", "b-0", "b-1"]}
    await plugin.stop()


async def test_a_restart_forgets_plugins_but_not_what_pods_hold(manager: DeviceManager) -> None:
    plugin = await registered(manager)
    await manager.admit(pod(asking("c", 1), uid="p"))
    await manager.stop()
    await manager.start()
    assert manager.capacity() == {RESOURCE: (0, 0)}
    assert not (manager.directory / "small.sock").exists()
    await plugin.stop()
    again = await registered(manager)
    await manager.admit(pod(asking("c", 1), name="q", uid="q"))
    assert again.calls == [("Allocate", ("a-1",))]
    await again.stop()


async def test_a_restart_during_an_allocation_refuses_that_pod_and_no_later_one(manager: DeviceManager) -> None:
    plugin = await registered(manager)
    plugin.answers.clear()
    admitting = asyncio.create_task(manager.admit(pod(asking("c", 1), uid="p")))
    await until(lambda: bool(plugin.calls))
    await manager.stop()
    with pytest.raises(AdmissionRefused, match="code = Canceled desc = grpc: the client connection is closing"):
        await admitting
    assert manager.held() == ()
    await manager.start()
    await plugin.stop()
    again = await registered(manager)
    await manager.admit(pod(asking("c", 1), uid="p"))
    await again.stop()


async def test_pod_resources_lists_app_containers_and_sidecars_only(manager: DeviceManager, directory: Path) -> None:
    plugin = await registered(manager)
    one = pod(asking("app", 1), inits=(asking("init", 1), asking("sidecar", 1, "Always")), uid="p")
    await manager.admit(one)
    lister = PodResourcesServer(directory / "pod-resources", manager, lambda: [one])
    await lister.start()
    async with aio.insecure_channel(f"unix:{directory / 'pod-resources' / 'kubelet.sock'}") as channel:
        answer = await PodResourcesListerStub(channel).List(resources_wire.ListPodResourcesRequest())
    listed = {c.name: [list(d.device_ids) for d in c.devices] for c in answer.pod_resources[0].containers}
    assert listed == {"sidecar": [["a-0"]], "app": [["a-1"]]}
    await lister.stop()
    await plugin.stop()
