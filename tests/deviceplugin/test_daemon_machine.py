"""Links, MIG and the driver, seen through the daemon as a process."""

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from proto.devices import DeviceShare, DeviceUUID
from simulation.machines.description import MachineDescription, MigDevice, mig_uuid
from simulation.nvml.build import build_library
from simulation.nvml.machine_file import EVERY_GPU, CallFails, LinkState
from tests.deviceplugin.daemon_rig import BRIDGED, DaemonRig, daemon
from tests.deviceplugin.gpus import NODE
from tests.polling import until

pytestmark = pytest.mark.needs_compiler

SMALL = MigDevice("1g.10gb", 9728, 7, 0)
PROFILE_RESOURCE = "nvidia.com/mig-1g.10gb"


def cut(*gpus: int) -> MachineDescription:
    """These GPUs have MIG on and one small instance each."""
    return replace(
        BRIDGED,
        gpus=tuple(
            replace(gpu, mig="enabled", mig_devices=(SMALL,)) if index in gpus else gpu
            for index, gpu in enumerate(BRIDGED.gpus)
        ),
        topo_m=(),
    )


def instance(gpu: int) -> DeviceUUID:
    return DeviceUUID(mig_uuid(BRIDGED.id, gpu, SMALL, NODE))


def score(node: DaemonRig) -> int:
    return node.scores()[node.uuid(0)][node.uuid(1)]


async def test_a_link_that_goes_down_lowers_the_score_and_one_that_is_down_at_one_end_is_told() -> None:
    async with daemon("--read-seconds", "0.2") as node:
        assert score(node) == 1220
        one_end = LinkState(gpu=0, link=0)
        node.machine(one_end)
        await until(lambda: score(node) == 1120 and bool(node.events("AsymmetricGPUP2PLink")))
        assert node.events("AsymmetricGPUP2PLink") == [
            f"GPU 0 ({node.uuid(0)}) counts 11 NVLinks to GPU 1 ({node.uuid(1)}), which counts 12 back; "
            "the pair is scored by the smaller number"
        ]
        node.machine(one_end, LinkState(gpu=1, link=0), LinkState(gpu=0, link=1), LinkState(gpu=1, link=1))
        await until(lambda: score(node) == 1020)
        node.machine()
        await until(lambda: score(node) == 1220)
        assert (node.capacity(), node.problems()) == ((40, 40), [])


async def test_mig_instances_of_strategy_mixed_have_a_resource_of_their_own() -> None:
    async with daemon("--mig-strategy", "mixed", description=cut(1)) as node:
        await until(lambda: node.capacity(PROFILE_RESOURCE) == (1, 1) and node.capacity() == (30, 30))
        assert [gpu.uuid for gpu in node.gpus()] == [node.uuid(gpu) for gpu in (0, 2, 3)]
        uid = node.bind("sliced", resource=PROFILE_RESOURCE, lent=())
        await node.runs("sliced")
        assert node.visible(uid) == instance(1)
        whole = node.bind("whole", lent=((DeviceShare(uuid=node.uuid(2), memory_mib=1000, cores=10),),))
        await node.runs("whole")
        assert node.visible(whole) == node.uuid(2)


async def test_mig_instances_of_strategy_single_are_the_nodes_own_resource() -> None:
    async with daemon("--mig-strategy", "single", description=cut(0, 1, 2, 3)) as node:
        await until(lambda: node.capacity() == (4, 4))
        assert [gpu.uuid for gpu in node.gpus()] == [instance(gpu) for gpu in range(4)]
        assert [gpu.memory_mib for gpu in node.gpus()] == [SMALL.memory_mib] * 4
        uid = node.bind("sliced", lent=((DeviceShare(uuid=instance(2), memory_mib=SMALL.memory_mib, cores=100),),))
        await node.runs("sliced")
        assert node.visible(uid) == instance(2)


async def test_a_driver_that_comes_later_is_served_and_one_that_is_exchanged_ends_the_process(tmp_path: Path) -> None:
    library = tmp_path / "libnvidia-ml.so.1"
    async with daemon("--read-seconds", "0.2", library=library, ready=False) as node:
        await until(lambda: node.said(f"Cannot load the NVML library {library}"))
        await until(node.is_ready)
        assert (node.registrations(), node.writes()) == (0, 0)
        shutil.copy(build_library(), tmp_path / "unpacked")
        (tmp_path / "unpacked").rename(library)
        await node.ready()
        assert node.capacity() == (40, 40)
        node.machine(CallFails(gpu=EVERY_GPU, call="nvmlDeviceGetCount", error="LIB_RM_VERSION_MISMATCH"))
        assert await node.ended() == 1
        assert node.log[-1] == "Error: The NVIDIA driver was upgraded under this process; restart it."
        assert node.problems() == []
        await until(lambda: node.capacity()[1] == 0)
