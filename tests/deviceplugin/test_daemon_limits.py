"""The daemon as a process on a node without HAMi-core, between an API server and a kubelet that runs containers."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from deviceplugin.records.checkpoint_file import CHECKPOINT_NAME
from deviceplugin.records.holdings import decode_checkpoint
from proto.annotations.keys import NODE_LIMITS
from proto.devices import DeviceShare
from proto.kubelet import deviceplugin_v1beta1_pb2 as pb
from simulation.hami_core import install_placeholder
from simulation.kubelet.device_manager import PreStartRefused
from tests.deviceplugin.daemon_rig import DaemonRig, daemon
from tests.polling import until
from tests.variables import elsewhere, value

pytestmark = pytest.mark.needs_compiler

UNENFORCED = ("--limits", "driver,hami-core,unenforced")
BY_SLOTS = "containerd://2.4.2"


async def test_a_container_with_a_part_of_a_gpu_is_not_started_and_one_with_a_whole_gpu_is() -> None:
    async with daemon(runtime_version=BY_SLOTS, hami_core=False) as node:
        assert node.annotation(NODE_LIMITS) == "none"
        whole = DeviceShare(uuid=node.uuid(1), memory_mib=node.gpus()[1].memory_mib, cores=100)
        node.bind("part", 0)
        uid = node.bind("whole", lent=((whole,),))
        await node.runs("whole")
        assert node.visible(uid) == node.uuid(1)
        await until(lambda: "container c0 was given a part of" in node.waiting("part"))
        assert "add unenforced to the daemon's limits" in node.waiting("part")
        await until(lambda: node.said("limits are none: the driver holds nothing"))
        series = await node.series()
        assert (series["topogpu_limits_enforced"], series["topogpu_unenforced_shares_allowed"]) == (0, 0)


async def test_it_is_started_if_that_is_allowed_and_then_everything_says_so() -> None:
    async with daemon(*UNENFORCED, runtime_version=BY_SLOTS, hami_core=False) as node:
        assert node.annotation(NODE_LIMITS) == "unenforced"
        node.bind("part", 0)
        await node.runs("part")
        await until(lambda: node.said("limits are unenforced: "))
        await until(lambda: node.events("LimitsNotEnforced"))
        await until(lambda: node.counts("topogpu_unenforced_shares_allowed"))


@pytest.mark.parametrize("runtime_version", [BY_SLOTS, "simulated://1"])
async def test_a_container_that_starts_again_finds_nothing_of_the_one_before(runtime_version: str) -> None:
    """A process that was killed may have left HAMi-core's lock taken, in the region of the container."""
    async with daemon(runtime_version=runtime_version) as node:
        uid = node.bind("part", 0)
        await node.runs("part")
        hosts = {mount.container_path: Path(mount.host_path) for mount in node.kubelet.created[uid][0].mounts}
        region, lock, limits = (hosts[path] for path in (str(region_of(node)), "/tmp/vgpulock", "/overrideEnv"))
        (region / f"{uid}.cache").touch()
        (lock / "lock").touch()
        text = limits.read_text()
        limits.unlink()
        await node.kubelet.restart_container(uid, "c0")
        assert (list(region.iterdir()), list(lock.iterdir()), limits.read_text()) == ([], [], text)


LIFTING = {
    "literal": [value("CUDA_DISABLE_CONTROL", "true")],
    "elsewhere": [elsewhere("CUDA_DISABLE_CONTROL")],
    "reference": [value("ON", "true"), value("CUDA_DISABLE_CONTROL", "$(ON)")],
    "driver": [value("NVIDIA_GPU_MEMORY_REQUEST", "80000")],
}
"""What no slot can replace, and what its author should know of."""
REPLACED = {
    "policy": [value("GPU_CORE_UTILIZATION_POLICY", "disable")],
    "amount": [elsewhere("CUDA_DEVICE_MEMORY_LIMIT_0")],
    "order": [value("CUDA_DEVICE_ORDER", "FASTEST_FIRST")],
    "feature": [value("NVIDIA_NVSWITCH", "enabled")],
}


async def test_what_a_container_sets_to_lift_its_limits_is_refused_or_replaced_by_its_slot() -> None:
    async with daemon(runtime_version=BY_SLOTS) as node:
        uids = {
            name: node.bind(name, place % 4, env=env) for place, (name, env) in enumerate((REPLACED | LIFTING).items())
        }
        await node.runs(*REPLACED)
        for name in LIFTING:
            await until(lambda name=name: "container c0" in node.waiting(name))  # type: ignore[misc]
            assert LIFTING[name][-1]["name"] in node.waiting(name)
        for name in REPLACED:
            env = node.env(uids[name])
            assert (env["CUDA_DISABLE_CONTROL"], env["GPU_CORE_UTILIZATION_POLICY"]) == ("false", "default")
            assert (env["CUDA_DEVICE_ORDER"], env["NVIDIA_NVSWITCH"]) == ("PCI_BUS_ID", "disabled")
            assert env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"


async def test_what_a_container_sets_to_lift_its_limits_is_refused_where_nothing_replaces_it() -> None:
    async with daemon(runtime_version="simulated://1") as node:
        for place, (name, env) in enumerate((REPLACED | LIFTING).items()):
            node.bind(name, place % 4, env=env)
            await until(lambda name=name: node.status(name).get("phase") == "Failed")  # type: ignore[misc]
            assert env[-1]["name"] in node.status(name)["message"]


def region_of(node: DaemonRig) -> Path:
    """Where a container finds its region."""
    return node.kubelet.root / "hook/vgpu"


@pytest.mark.parametrize("runtime_version", [BY_SLOTS, "simulated://1"])
async def test_parts_of_several_gpus_need_a_setting_and_keep_what_they_have_without_it(runtime_version: str) -> None:
    async with daemon(*UNENFORCED, runtime_version=runtime_version) as node:
        assert node.annotation(NODE_LIMITS) == "partly-enforced"
        uid = node.bind("before", 0, 1)
        await node.runs("before")
        series = await node.series()
        assert (series["topogpu_limits_enforced"], series["topogpu_unenforced_shares_allowed"]) == (1, 1)
        await until(lambda: node.said("limits are partly-enforced: "))
        await until(lambda: node.events("LimitsNotEnforced"))
        await node.kill()
        node.options = tuple(option for option in node.options if option not in UNENFORCED)
        await node.start()
        await until(lambda: node.annotation(NODE_LIMITS) == "hami-core")
        await node.ready()
        await node.kubelet.restart_container(uid, "c0")
        node.bind("after", 2, 3)
        words = "HAMi-core does not hold parts of several GPUs, here of 2"
        await until(lambda: words in node.waiting("after") + node.status("after").get("message", ""))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:50])


HURT: list[tuple[str, Callable[[Path], object], str]] = [
    ("libvgpu.so", lambda link: link.resolve().unlink(), "(there is no|No such file)"),
    ("libvgpu.so", lambda link: cut(link.resolve()), "is not an ELF file"),
    ("ld.so.preload", Path.unlink, "is missing"),
    ("ld.so.preload", lambda file: file.write_text(""), "does not name"),
]


@pytest.mark.parametrize("runtime_version", [BY_SLOTS, "simulated://1"])
async def test_a_container_is_not_started_again_once_its_limits_have_gone(runtime_version: str) -> None:
    """By slots, and by what Allocate answered when the pod was admitted."""
    async with daemon(runtime_version=runtime_version) as node:
        uid = node.bind("part", 0)
        await node.runs("part")
        hami_core = node.kubelet.root / "hook"
        for name, hurt, words in HURT:
            hurt(hami_core / "vgpu" / name)
            with pytest.raises(PreStartRefused, match=words):
                await node.kubelet.restart_container(uid, "c0")
            install_placeholder(hami_core)
            await node.kubelet.restart_container(uid, "c0")


@pytest.mark.parametrize("runtime_version", [BY_SLOTS, "simulated://1"])
async def test_a_container_that_was_started_without_limits_when_that_was_allowed_is_not_started_again(
    runtime_version: str,
) -> None:
    async with daemon(*UNENFORCED, runtime_version=runtime_version, hami_core=False) as node:
        whole = DeviceShare(uuid=node.uuid(1), memory_mib=node.gpus()[1].memory_mib, cores=100)
        part = node.bind("part", 0)
        await node.runs("part")
        entire = node.bind("entire", lent=((whole,),))
        await node.runs("entire")
        await node.kill()
        node.options = tuple(option for option in node.options if option not in UNENFORCED)
        await node.start()
        await until(lambda: node.annotation(NODE_LIMITS) == "none")
        await node.ready()
        with pytest.raises(PreStartRefused, match="container c0 was given a part of"):
            await node.kubelet.restart_container(part, "c0")
        await node.kubelet.restart_container(entire, "c0")


async def test_a_start_that_hangs_on_a_disk_empties_no_folder_of_a_container_that_was_started_meanwhile() -> None:
    """The library's version of the container is a pipe for a while: who reads it waits for who writes it."""
    async with daemon(runtime_version="simulated://1") as node:
        uid = node.bind("part", 0)
        await node.runs("part")
        root = node.kubelet.root
        link = root / "hook/vgpu/libvgpu.so"
        library = link.resolve()
        newer, kept = library.with_name("libvgpu.so.v2"), library.with_name("kept")
        newer.write_bytes(library.read_bytes())
        link.unlink()
        link.symlink_to(newer)
        library.rename(kept)
        os.mkfifo(library)
        (held,) = decode_checkpoint((root / "device-plugins" / CHECKPOINT_NAME).read_bytes())
        writers: list[int] = []

        def is_read() -> bool:
            with suppress(OSError):
                writers.append(os.open(library, os.O_WRONLY | os.O_NONBLOCK))
            return bool(writers)

        request = pb.PreStartContainerRequest(devices_ids=sorted(held.ids))
        async with node.plugin() as plugin:
            late = plugin.PreStartContainer(request)
            await until(is_read)
            late.cancel()
            kept.replace(library)
            following = plugin.PreStartContainer(request)
            other = node.bind("other", 1)
            await node.runs("other")
            await node.kubelet.restart_container(other, "c0")
            assert not following.done()
            os.close(writers[0])
            await following
        await node.kubelet.restart_container(uid, "c0")
