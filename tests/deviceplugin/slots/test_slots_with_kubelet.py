"""Strategy `slots` from the pod to the container: the daemon as a process, kubelet and runtime stood in for."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proto.annotations.keys import NODE_LOCK
from simulation.kubelet.device_manager import PreStartRefused
from tests.deviceplugin.daemon_rig import DaemonRig, daemon
from tests.deviceplugin.gpus import share
from tests.polling import until

pytestmark = pytest.mark.needs_compiler


@pytest.fixture
async def node() -> AsyncIterator[DaemonRig]:
    async with daemon("--limits", "driver,hami-core,unenforced", runtime_version="containerd://2.4.2") as node:
        yield node


async def test_pods_of_equal_shape_at_once_each_get_their_own_gpu_without_a_lock(node: DaemonRig) -> None:
    assert node.is_by_slots()
    uids = {f"p{n}": node.bind_shares(f"p{n}", ((share(node.gpus()[n % 4].uuid, 1000 + n),),)) for n in range(12)}
    await node.runs(*uids)
    for n, uid in enumerate(uids.values()):
        env = node.env(uid)
        assert (env["NVIDIA_VISIBLE_DEVICES"], env["CUDA_DEVICE_MEMORY_LIMIT_0"]) == (
            node.gpus()[n % 4].uuid,
            f"{1000 + n}m",
        )
    assert (node.writes("nodes"), node.writes("pods")) == (1, 0)
    assert NODE_LOCK not in node.annotations()


async def test_init_containers_have_their_own_gpus_and_limits(node: DaemonRig) -> None:
    gpu, other = (device.uuid for device in node.gpus()[:2])
    shared = node.bind_shares("shared", ((share(gpu, 9000),), (share(gpu, 3000),)), init=1)
    alone = node.bind_shares("alone", ((share(gpu, 500),), (), (share(gpu, 700), share(other, 800))), init=1)
    await node.runs("shared", "alone")
    assert [node.env(shared, n)["CUDA_DEVICE_MEMORY_LIMIT_0"] for n in range(2)] == ["9000m", "3000m"]
    assert node.env(alone, 0)["CUDA_DEVICE_MEMORY_LIMIT_0"] == "500m"
    assert node.visible(alone, 2) == f"{gpu},{other}"


async def test_a_folder_that_cannot_be_written_and_a_killed_daemon_only_delay_the_container(node: DaemonRig) -> None:
    node.cdi.rename(node.cdi.with_name("aside")) if node.cdi.exists() else None
    node.cdi.write_text("in the way")
    uid = node.bind("p", 2)
    await until(lambda: "cannot be written" in node.waiting("p"))
    assert node.waiting("p").startswith("device plugin PreStartContainer rpc failed with err: ")
    await node.kill()
    await node.start()
    await until(lambda: node.registrations() == 2)
    assert node.is_by_slots()
    node.cdi.unlink()
    await node.runs("p")
    assert node.visible(uid) == node.gpus()[2].uuid


def empty(folder: Path) -> None:
    """As a reboot does."""
    shutil.rmtree(folder)
    folder.mkdir()


async def test_a_restarted_container_is_proven_again_also_after_a_reboot(node: DaemonRig) -> None:
    uid = node.bind("p", 1)
    await node.runs("p")
    empty(node.cdi)
    await node.kubelet.restart_container(uid, "c0")
    assert node.visible(uid, 1) == node.visible(uid, 0) == node.gpus()[1].uuid
    await node.kill()
    empty(node.cdi)
    with pytest.raises(PreStartRefused):
        await node.kubelet.restart_container(uid, "c0")
    await node.start()
    await until(lambda: node.registrations() == 2)
    await node.ready()
    await node.kubelet.restart_container(uid, "c0")
    assert node.visible(uid, 2) == node.gpus()[1].uuid


async def test_a_restarted_kubelet_is_served_on(node: DaemonRig) -> None:
    first = node.bind("first", 0)
    await node.runs("first")
    await node.kubelet.restart()
    await until(lambda: node.registrations() == 2)
    await node.ready()
    second = node.bind("second", 3)
    await node.runs("second")
    await node.kubelet.restart_container(first, "c0")
    assert (node.visible(first, 1), node.visible(second)) == (node.gpus()[0].uuid, node.gpus()[3].uuid)


async def test_ids_of_a_deleted_pod_serve_the_next(node: DaemonRig) -> None:
    node.bind("p", 0)
    await node.runs("p")
    node.server.delete("pods", "p", namespace="default")
    await until(lambda: node.kubelet.devices.held() == ())
    uid = node.bind("p", 1)
    await node.runs("p")
    assert node.visible(uid) == node.gpus()[1].uuid


async def test_a_gpu_that_is_decided_twice_is_given_to_the_first_and_the_others_say_who_has_it(node: DaemonRig) -> None:
    gpu = node.gpus()[1]
    whole = ((share(gpu.uuid, gpu.memory_mib, 100),),)
    node.bind_shares("first", whole)
    await node.runs("first")
    for n in range(3):
        node.bind_shares(f"late{n}", whole)
    await until(lambda: all("were decided" in node.waiting(f"late{n}") for n in range(3)))
    assert f"beside default/first ({gpu.memory_mib} MiB, 100 %)" in node.waiting("late0")
    node.server.delete("pods", "first", namespace="default")
    await until(lambda: sum("were decided" in node.waiting(f"late{n}") for n in range(3)) == 2)
