"""What a device plugin may rely on of kubelet: the stand-in and the real one call it alike."""

import base64
import json
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from grpc import StatusCode, aio

from proto.kubelet.deviceplugin_v1beta1_pb2 import ContainerAllocateResponse, RegisterRequest
from proto.kubelet.deviceplugin_v1beta1_pb2_grpc import RegistrationStub
from tests.cluster.control_plane import ControlPlane
from tests.node.kubelets import Kubelet, real_one, stand_in
from tests.node.real_node import RealNode
from tests.polling import until
from tests.simulation.kubelet.plugin import IDS, RESOURCE, SmallPlugin

REFUSED = "UnexpectedAdmissionError"
LISTS_SIDECARS = 30
"""The first minor release whose pod-resources names sidecars."""


@pytest.fixture
def short() -> Iterator[Path]:
    """Sockets lie below it: their paths may not be long."""
    folder = Path(tempfile.mkdtemp(prefix="k"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(params=["stand-in", pytest.param("real", marks=pytest.mark.node)])
async def kubelet(request: pytest.FixtureRequest, short: Path) -> AsyncIterator[Kubelet]:
    """Both must behave alike."""
    if request.param == "stand-in":
        async with stand_in(short) as one:
            yield one
    else:
        plane: ControlPlane = request.getfixturevalue("plane")
        node: RealNode = request.getfixturevalue("machine")
        async with real_one(node, plane, f"test-{uuid.uuid4().hex[:8]}") as one:
            yield one


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as one:
        yield one


async def plug(kubelet: Kubelet, stack: AsyncExitStack, **options: Any) -> SmallPlugin:
    """A plugin that has registered, and whose four devices the Node counts."""
    plugin = SmallPlugin(kubelet.plugins, **options)
    plugin.files = False
    stack.push_async_callback(plugin.stop)
    await plugin.start()
    await kubelet.counts(4, 4)
    return plugin


def names(plugin: SmallPlugin) -> list[str]:
    return [name for name, _ in plugin.calls]


async def test_a_plugin_that_registers_is_asked_for_its_devices_once(kubelet: Kubelet, stack: AsyncExitStack) -> None:
    plugin = await plug(kubelet, stack)
    assert (plugin.followed, plugin.calls) == (1, [])
    assert await kubelet.allocatable_ids() == sorted(IDS)


@pytest.mark.parametrize(
    ("version", "resource", "why"),
    [
        ("v1alpha1", RESOURCE, 'requested API version "v1alpha1" is not supported by kubelet'),
        ("v1beta1", "gpu", 'the ResourceName "gpu" is invalid'),
    ],
)
async def test_a_registration_that_cannot_be_is_refused(
    kubelet: Kubelet, version: str, resource: str, why: str
) -> None:
    async with aio.insecure_channel(f"unix:{kubelet.plugins / 'kubelet.sock'}") as channel:
        request = RegisterRequest(version=version, endpoint="none.sock", resource_name=resource)
        with pytest.raises(aio.AioRpcError) as refusal:
            await RegistrationStub(channel).Register(request)
    assert refusal.value.code() is StatusCode.UNKNOWN
    assert why in str(refusal.value.details())


async def test_unhealthy_devices_are_capacity_and_not_allocatable(kubelet: Kubelet, stack: AsyncExitStack) -> None:
    plugin = await plug(kubelet, stack)
    plugin.set_health("b-1", "Unhealthy")
    await kubelet.counts(4, 3)
    plugin.set_health("b-1", "Healthy")
    await kubelet.counts(4, 4)


async def test_devices_of_a_plugin_that_ends_are_unhealthy(kubelet: Kubelet, stack: AsyncExitStack) -> None:
    plugin = await plug(kubelet, stack)
    await plugin.stop()
    await kubelet.counts(4, 0)


async def test_the_plugin_is_asked_what_it_prefers_then_allocates_then_is_told_of_the_start(
    kubelet: Kubelet, stack: AsyncExitStack
) -> None:
    plugin = await plug(kubelet, stack, preferred=("b-1", "a-0"), pre_start=True)
    await kubelet.add("p", ("main", 2))
    await kubelet.running("p")
    assert [(name, set(ids)) for name, ids in plugin.calls] == [
        ("GetPreferredAllocation", set(IDS)),
        ("Allocate", {"b-1", "a-0"}),
        ("PreStartContainer", {"b-1", "a-0"}),
    ]


async def test_a_plugin_that_wants_neither_is_only_asked_to_allocate(kubelet: Kubelet, stack: AsyncExitStack) -> None:
    plugin = await plug(kubelet, stack)
    await kubelet.add("p", ("main", 1), ("none", 0), ("second", 1))
    await kubelet.running("p")
    assert names(plugin) == ["Allocate", "Allocate"]


async def test_a_container_sees_the_plugins_answer_and_its_own_environment(
    kubelet: Kubelet, stack: AsyncExitStack
) -> None:
    plugin = await plug(kubelet, stack)
    await kubelet.add("p", ("main", 2))
    await kubelet.running("p")
    [(_, ids)] = plugin.calls

    async def told() -> bool:
        return len(await kubelet.runner.environments(await kubelet.pod("p"), "main")) == 1

    await until(told)
    [seen] = await kubelet.runner.environments(await kubelet.pod("p"), "main")
    wanted = {"VISIBLE": ",".join(ids), "LIMIT": "from-plugin", "OWN": "from-pod"}
    assert {name: seen.get(name) for name in wanted} == wanted


async def test_every_start_is_told_with_the_ids_of_the_first(kubelet: Kubelet, stack: AsyncExitStack) -> None:
    plugin = await plug(kubelet, stack, pre_start=True)
    await kubelet.add("p", ("main", 2))
    await kubelet.running("p")
    await kubelet.runner.end(await kubelet.pod("p"), "main")

    async def again() -> bool:
        return len(await kubelet.runner.environments(await kubelet.pod("p"), "main")) == 2

    await until(again)
    assert names(plugin) == ["Allocate", "PreStartContainer", "PreStartContainer"]
    assert len({frozenset(ids) for _, ids in plugin.calls}) == 1


async def test_containers_use_the_ids_of_ended_init_containers_again_and_sidecars_keep_theirs(
    kubelet: Kubelet, stack: AsyncExitStack
) -> None:
    plugin = await plug(kubelet, stack, pre_start=True)
    await kubelet.add("p", ("main", 3), init=(("init", 2),), sidecars=(("side", 1),))
    await kubelet.running("p")
    init, side, main = (set(ids) for name, ids in plugin.calls if name == "Allocate")
    assert [len(init), len(side), len(main)] == [2, 1, 3]
    assert side <= init or init <= main
    assert not side & main
    assert [set(ids) for name, ids in plugin.calls if name == "PreStartContainer"] == [init, side, main]


async def test_pod_resources_leaves_out_init_containers_that_end(kubelet: Kubelet, stack: AsyncExitStack) -> None:
    plugin = await plug(kubelet, stack)
    await kubelet.add("p", ("main", 1), ("none", 0), init=(("init", 1),), sidecars=(("side", 1),))
    await kubelet.running("p")
    _, side, main = (sorted(ids) for _, ids in plugin.calls)
    sidecars = {"side": [(-1, side)]} if await kubelet.peer.minor() >= LISTS_SIDECARS else {}
    assert await kubelet.listed("p") == {**sidecars, "main": [(-1, main)], "none": []}


async def test_pod_resources_lists_every_device_by_itself_and_the_checkpoint_groups_them_by_numa_node(
    kubelet: Kubelet, stack: AsyncExitStack
) -> None:
    await plug(kubelet, stack, numa={"a-0": 0, "a-1": 0, "b-0": 1})
    uid = await kubelet.add("p", ("main", 4))
    await kubelet.running("p")
    assert await kubelet.listed("p") == {"main": [(-1, ["b-1"]), (0, ["a-0"]), (0, ["a-1"]), (1, ["b-0"])]}
    [held] = [one for one in kubelet.checkpoint()["Data"]["PodDeviceEntries"] if one["PodUID"] == uid]
    assert {int(numa): sorted(ids) for numa, ids in held["DeviceIDs"].items()} == {
        -1: ["b-1"],
        0: ["a-0", "a-1"],
        1: ["b-0"],
    }


async def test_the_checkpoint_names_who_holds_what_and_what_was_answered(
    kubelet: Kubelet, stack: AsyncExitStack
) -> None:
    plugin = await plug(kubelet, stack)
    uid = await kubelet.add("p", ("main", 2))
    await kubelet.running("p")
    [(_, ids)] = plugin.calls
    content = kubelet.checkpoint()
    assert set(content) == {"Data", "Checksum"}
    assert isinstance(content["Checksum"], int)
    assert sorted(content["Data"]["RegisteredDevices"][RESOURCE]) == sorted(IDS)
    [held] = [one for one in content["Data"]["PodDeviceEntries"] if one["PodUID"] == uid]
    answer = ContainerAllocateResponse.FromString(base64.b64decode(held.pop("AllocResp")))
    assert dict(answer.envs)["VISIBLE"] == ",".join(ids)
    held["DeviceIDs"] = {numa: sorted(found) for numa, found in held["DeviceIDs"].items()}
    devices = {"-1": sorted(ids)}
    assert held == {"PodUID": uid, "ContainerName": "main", "ResourceName": RESOURCE, "DeviceIDs": devices}


async def test_a_refused_allocation_ends_the_pod_with_the_plugins_words(
    kubelet: Kubelet, stack: AsyncExitStack
) -> None:
    plugin = await plug(kubelet, stack)
    plugin.refuse_with = "no, not this one"
    await kubelet.add("p", ("main", 1))
    why = "Allocate failed due to rpc error: code = FailedPrecondition desc = no, not this one, which is unexpected"
    assert await kubelet.refused("p") == (REFUSED, f"Pod was rejected: {why}")
    await until(lambda: _warned(kubelet, "p", (REFUSED, why)))
    plugin.refuse_with = ""
    await kubelet.add("q", ("main", 4))
    await kubelet.running("q")


async def _warned(kubelet: Kubelet, pod: str, warning: tuple[str, str]) -> bool:
    return warning in await kubelet.warnings(pod)


async def test_more_devices_than_are_free_end_the_pod(kubelet: Kubelet, stack: AsyncExitStack) -> None:
    plugin = await plug(kubelet, stack)
    await kubelet.add("p", ("main", 3))
    await kubelet.running("p")
    await kubelet.add("q", ("main", 2))
    why = f"requested number of devices unavailable for {RESOURCE}. Requested: 2, Available: 1"
    assert await kubelet.refused("q") == (
        REFUSED,
        f"Pod was rejected: Allocate failed due to {why}, which is unexpected",
    )
    await kubelet.remove("p")
    await kubelet.add("r", ("main", 4))
    await kubelet.running("r")
    assert set(plugin.calls[-1][1]) == set(IDS)


async def test_a_refused_start_keeps_the_container_waiting_and_is_tried_again(
    kubelet: Kubelet, stack: AsyncExitStack
) -> None:
    plugin = await plug(kubelet, stack, pre_start=True)
    plugin.pre_start_failures = 3
    await kubelet.add("p", ("main", 1))
    why = (
        "device plugin PreStartContainer rpc failed with err: rpc error: code = Unavailable desc = whose ids are these?"
    )
    assert await kubelet.waiting("p") == {"reason": "CreateContainerConfigError", "message": why}
    await until(lambda: _warned(kubelet, "p", ("Failed", f"Error: {why}")))
    await kubelet.running("p")
    assert names(plugin) == ["Allocate", *["PreStartContainer"] * 4]


async def test_a_cdi_device_without_a_spec_keeps_the_container_waiting_until_the_spec_is_there(
    kubelet: Kubelet, stack: AsyncExitStack
) -> None:
    plugin = await plug(kubelet, stack)
    plugin.cdi_devices = ("topogpu.test/slot=s1",)
    await kubelet.add("p", ("main", 1))
    waiting = await kubelet.waiting("p")
    assert waiting["reason"] == "CreateContainerError"
    assert waiting["message"].endswith("unresolvable CDI devices topogpu.test/slot=s1")
    device = {"name": "s1", "containerEdits": {"env": ["SLOT=s1", "OWN=from-spec"]}}
    spec = {"cdiVersion": "0.6.0", "kind": "topogpu.test/slot", "devices": [device]}
    kubelet.runner.cdi.mkdir(exist_ok=True)
    file = kubelet.runner.cdi / "topogpu.test-slot.json"
    stack.callback(file.unlink)
    file.write_text(json.dumps(spec))
    await kubelet.running("p")

    async def told() -> bool:
        return len(await kubelet.runner.environments(await kubelet.pod("p"), "main")) == 1

    await until(told)
    [seen] = await kubelet.runner.environments(await kubelet.pod("p"), "main")
    assert (seen["SLOT"], seen["OWN"]) == ("s1", "from-spec")


async def test_a_restarted_kubelet_removes_the_sockets_keeps_the_pods_and_waits_for_the_plugin(
    kubelet: Kubelet, stack: AsyncExitStack
) -> None:
    plugin = await plug(kubelet, stack)
    await kubelet.add("before", ("main", 3))
    await kubelet.running("before")
    await kubelet.runner.restart()
    assert not plugin.socket.exists()
    await kubelet.counts(0, 0)
    await kubelet.add("meanwhile", ("main", 1))
    why = f"no healthy devices present; cannot allocate unhealthy devices {RESOURCE}"
    assert await kubelet.refused("meanwhile") == (
        REFUSED,
        f"Pod was rejected: Allocate failed due to {why}, which is unexpected",
    )
    await plugin.stop()
    again = await plug(kubelet, stack)
    assert (await kubelet.pod("before"))["status"]["phase"] == "Running"
    await kubelet.add("after", ("main", 1))
    await kubelet.running("after")
    [(_, held)], [(_, given)] = plugin.calls, again.calls
    assert not set(held) & set(given)


async def test_a_plugin_that_registers_again_is_asked_anew_and_what_is_held_stays(
    kubelet: Kubelet, stack: AsyncExitStack
) -> None:
    first = await plug(kubelet, stack)
    await kubelet.add("before", ("main", 3))
    await kubelet.running("before")
    await first.stop()
    await kubelet.counts(4, 0)
    second = await plug(kubelet, stack)
    await kubelet.add("after", ("main", 1))
    await kubelet.running("after")
    assert not set(first.calls[0][1]) & set(second.calls[0][1])
