"""The daemon where nothing of NVIDIA's is on the node but a driver below some folder."""

import shutil
from pathlib import Path

import grpc
import pytest

from proto.kubelet import deviceplugin_v1beta1_pb2 as pb
from simulation.kubelet.device_manager import PreStartRefused
from simulation.nvml.build import build_library
from simulation.nvml.machine_file import EVERY_GPU, CallFails
from tests.deviceplugin.daemon_rig import DaemonRig, daemon
from tests.polling import until

pytestmark = pytest.mark.needs_compiler
VERSION = "550.90.07"
"""What the fake NVML says."""
BOTH = pytest.mark.parametrize("allocation", ["slots", "immediate"])


def install(root: Path, version: str = VERSION) -> None:
    """A driver appears whole, as a mount does."""
    unpacked = root.with_name("unpacked")
    unpacked.parent.mkdir(parents=True, exist_ok=True)
    folder = unpacked / "usr/lib64"
    folder.mkdir(parents=True)
    shutil.copy(build_library(), folder / f"libnvidia-ml.so.{version}")
    (folder / f"libcuda.so.{version}").touch()
    for name in ("libcuda", "libnvidia-ml"):
        (folder / f"{name}.so.1").symlink_to(f"{name}.so.{version}")
    for gpu in range(4):
        file = root.parent / "dev" / f"nvidia{gpu}"
        file.parent.mkdir(exist_ok=True)
        file.touch()
    unpacked.rename(root)


def flags(root: Path) -> tuple[str, ...]:
    own = ("--driver-root", "/run/nvidia/driver", "--nvml-library", "")
    return (*own, "--dev-root", str(root.parent), "--device-list-strategy", "driver-files", "--read-seconds", "0.2")


def libraries(node: DaemonRig, uid: str) -> dict[str, str]:
    (made,) = node.kubelet.created[uid]
    return {mount.container_path: mount.host_path for mount in made.mounts if "libcuda.so.1" in mount.container_path}


@BOTH
async def test_a_driver_that_appears_is_used_and_given_to_containers_file_by_file(
    tmp_path: Path, allocation: str
) -> None:
    root = tmp_path / "run/nvidia/driver"
    async with daemon(*flags(root), "--allocation", allocation, ready=False, host=tmp_path) as node:
        missing = "No NVIDIA driver below /run/nvidia/driver: libnvidia-ml.so.1 is in none of its library folders."
        await until(lambda: node.said(missing))
        await until(node.is_ready)
        assert node.registrations() == 0
        install(root)
        await node.ready()
        uid = node.bind("one", 1)
        await node.runs("one")
        library = f"/run/nvidia/driver/usr/lib64/libcuda.so.{VERSION}"
        assert {path: host for path, host in libraries(node, uid).items() if "lib64" in path} == {
            "/usr/lib64/libcuda.so.1": library
        }
        assert len(libraries(node, uid)) == 2
        assert node.visible(uid) == "void"
        (made,) = node.kubelet.created[uid]
        assert "/dev/nvidia1" in {device.container_path for device in made.devices}
        assert "/dev/nvidia0" not in {device.container_path for device in made.devices}
        await until(
            lambda: node.said("/dev/nvidia-uvm is missing: CUDA programs in containers that start now will find no GPU")
        )


async def test_gpus_whose_driver_has_gone_or_is_another_than_the_kernels_are_not_offered(tmp_path: Path) -> None:
    root = tmp_path / "run/nvidia/driver"
    install(root)
    async with daemon(*flags(root), host=tmp_path) as node:
        root.rename(tmp_path / "gone")
        await until(lambda: node.capacity()[1] == 0)
        gone = "No NVIDIA driver below /run/nvidia/driver: libcuda.so.1 is in none of its library folders."
        await until(lambda: node.said(gone))
        install(root, "560.28.03")
        await until(
            lambda: node.said(
                f"The NVIDIA driver in the kernel is {VERSION} and its libraries below /run/nvidia/driver are 560.28.03"
            )
        )
        assert node.capacity()[1] == 0
        root.rename(tmp_path / "other")
        (tmp_path / "gone").rename(root)
        await node.ready()


async def test_a_driver_that_is_exchanged_ends_the_process_and_the_next_one_waits_for_it(tmp_path: Path) -> None:
    root = tmp_path / "run/nvidia/driver"
    install(root)
    async with daemon(*flags(root), host=tmp_path) as node:
        root.rename(tmp_path / "gone")
        node.machine(CallFails(gpu=EVERY_GPU, call="nvmlDeviceGetCount", error="DRIVER_NOT_LOADED"))
        assert await node.ended() == 1
        assert node.log[-1] == "Error: The NVIDIA driver was unloaded under this process; restart it."
        node.machine()
        await node.start()
        missing = "No NVIDIA driver below /run/nvidia/driver: libnvidia-ml.so.1 is in none of its library folders."
        await until(lambda: node.said(missing))
        (tmp_path / "gone").rename(root)
        await node.ready()


async def test_a_container_that_allocate_gave_another_drivers_files_does_not_start_again(tmp_path: Path) -> None:
    root = tmp_path / "run/nvidia/driver"
    install(root)
    async with daemon(*flags(root), "--allocation", "immediate", host=tmp_path) as node:
        uid = node.bind("one", 1)
        await node.runs("one")
        ids = node.kubelet.created[uid][0].device_ids
        async with node.plugin() as plugin:
            await plugin.PreStartContainer(pb.PreStartContainerRequest(devices_ids=ids))
            root.rename(tmp_path / "gone")
            await until(lambda: node.capacity()[1] == 0)
            with pytest.raises(grpc.aio.AioRpcError, match="no NVIDIA driver below /run/nvidia/driver"):
                await plugin.PreStartContainer(pb.PreStartContainerRequest(devices_ids=ids))
            (tmp_path / "gone").rename(root)
            await until(lambda: node.capacity()[1] > 0)
            await plugin.PreStartContainer(pb.PreStartContainerRequest(devices_ids=ids))
            root.rename(tmp_path / "gone")
            # The same version, in another folder than before.
            install(root)
            (root / "usr/lib64").rename(root / "lib64")
            await until(lambda: node.capacity()[1] > 0)
            with pytest.raises(grpc.aio.AioRpcError, match="the NVIDIA driver was replaced since"):
                await plugin.PreStartContainer(pb.PreStartContainerRequest(devices_ids=ids))


async def test_a_container_is_not_started_again_while_a_file_that_allocate_named_is_gone(tmp_path: Path) -> None:
    """containerd makes a folder of it on the host, in which no daemon can put its socket again."""
    root = tmp_path / "run/nvidia/driver"
    install(root)
    socket = root / "run/nvidia-persistenced/socket"
    socket.parent.mkdir(parents=True)
    socket.touch()
    async with daemon(*flags(root), "--allocation", "immediate", host=tmp_path) as node:
        uid = node.bind("one", 1)
        await node.runs("one")
        socket.unlink()
        with pytest.raises(PreStartRefused, match="/run/nvidia-persistenced/socket is missing, and this container"):
            await node.kubelet.restart_container(uid, "c0")
        socket.touch()
        await node.kubelet.restart_container(uid, "c0")
