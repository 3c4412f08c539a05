"""The daemon as a process over the fake driver, which limits GPU memory by control group."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from deviceplugin.container.edits import DEFAULT_CDI_KIND
from proto.annotations.keys import NODE_LIMITS
from proto.devices import DeviceShare
from simulation.kubelet.runtime_hooks import remove_group
from simulation.machines.description import MachineDescription
from simulation.nvml.machine_file import CallFails, CallHangs, Process
from tests.deviceplugin.daemon_rig import BRIDGED, DaemonRig, daemon
from tests.polling import until
from tests.variables import value

pytestmark = pytest.mark.needs_compiler

BY_SLOTS = "containerd://2.4.2"
MIB = 1 << 20


def with_driver(version: str) -> MachineDescription:
    return replace(BRIDGED, software=replace(BRIDGED.software, driver=version))


@asynccontextmanager
async def limiting(*flags: str, driver: str = "615.10", hami_core: bool = False) -> AsyncIterator[DaemonRig]:
    async with daemon(
        *flags,
        description=with_driver(driver),
        runtime_version=BY_SLOTS,
        hami_core=hami_core,
        control_groups=True,
    ) as node:
        yield node


def limits_file(node: DaemonRig) -> Path:
    return node.kubelet.root / "machine.limits"


def held(node: DaemonRig) -> Mapping[tuple[str, str], int]:
    """The hard limits of the driver in MiB, by GPU and folder of the group."""
    lines = limits_file(node).read_text().splitlines() if limits_file(node).exists() else []
    found = {}
    for uuid, soft, hard, folder in (line.split(" ", 3) for line in lines):
        assert soft == "0"
        found[uuid, folder] = int(hard) // MIB
    return found


def group(node: DaemonRig, uid: str, container: str = "c0") -> str:
    made = node.kubelet.running()[uid][container]
    return str(node.kubelet.root / f"cgroup/kubepods/pod{uid}/{made.container_id}")


def part(node: DaemonRig, gpu: int, memory_mib: int = 3000, cores: int = 0) -> DeviceShare:
    return DeviceShare(uuid=node.uuid(gpu), memory_mib=memory_mib, cores=cores)


def bind(node: DaemonRig, name: str, gpu: int) -> str:
    """A pod whose one container has a part of the GPU's memory; its UID."""
    return node.bind(name, lent=((part(node, gpu),),))


async def test_the_driver_limits_each_gpu_of_a_container_before_it_is_created_and_no_library_is_loaded() -> None:
    async with limiting(hami_core=True) as node:
        assert node.annotation(NODE_LIMITS) == "driver+hami-core"
        uid = node.bind_shares("two", ((part(node, 0, 3000), part(node, 1, 5000)),))
        await node.runs("two")
        assert held(node) == {(node.uuid(0), group(node, uid)): 3000, (node.uuid(1), group(node, uid)): 5000}
        (made,) = node.kubelet.created[uid]
        assert not [mount for mount in made.mounts if "libvgpu" in mount.container_path]
        assert "NVIDIA_GPU_MEMORY_LIMIT" not in made.env


async def test_with_both_the_driver_holds_memory_and_hami_core_the_cores_alone() -> None:
    async with limiting(hami_core=True) as node:
        uid = node.bind("both", lent=((part(node, 0, 3000, 30),),))
        await node.runs("both")
        assert held(node) == {(node.uuid(0), group(node, uid)): 3000}
        env = node.env(uid)
        assert (env["NVIDIA_GPU_MEMORY_REQUEST"], env["NVIDIA_GPU_MEMORY_LIMIT"]) == ("0", "3000")
        assert env["CUDA_DEVICE_SM_LIMIT_0"] == "30"
        assert "CUDA_DEVICE_MEMORY_LIMIT_0" not in env
        assert [mount for mount in node.kubelet.created[uid][0].mounts if "libvgpu" in mount.container_path]


async def test_cores_are_refused_where_the_driver_is_alone_and_a_whole_gpu_needs_nothing() -> None:
    async with limiting() as node:
        assert node.annotation(NODE_LIMITS) == "driver"
        whole = DeviceShare(uuid=node.uuid(1), memory_mib=node.gpus()[1].memory_mib, cores=100)
        node.bind("cores", lent=((part(node, 0, 3000, 30),),))
        node.bind("whole", lent=((whole,),))
        node.bind("lifting", lent=((part(node, 2),),), env=[value("CUDA_DISABLE_CONTROL", "true")])
        await node.runs("whole", "lifting")
        await until(lambda: "the driver holds no cores" in node.waiting("cores"))
        assert [uuid for uuid, _ in held(node)] == [node.uuid(2)]


@pytest.mark.parametrize(
    ("flags", "driver", "word", "why"),
    [
        pytest.param((), "580.95", "hami-core", "", id="an older driver"),
        pytest.param(("--limits", "hami-core"), "615.10", "hami-core", "", id="the setting"),
        pytest.param(("--limits", "none"), "615.10", "none", "the setting limits", id="nothing"),
        pytest.param(("--limits", "driver"), "580.95", "none", "the driver is 580.95, and limits by", id="not there"),
        pytest.param(("--limits", "driver"), "615.10", "driver", "", id="the driver alone"),
        pytest.param(("--allocation", "immediate"), "615.10", "hami-core", "", id="immediate allocation"),
    ],
)
async def test_the_node_says_which_backends_hold_parts(
    flags: tuple[str, ...], driver: str, word: str, why: str
) -> None:
    async with limiting(*flags, driver=driver, hami_core=True) as node:
        assert node.annotation(NODE_LIMITS) == word
        assert not why or node.said(why)


async def test_a_container_is_not_created_while_the_driver_refuses_its_limit() -> None:
    async with limiting() as node:
        limits_file(node).unlink(missing_ok=True)
        limits_file(node).mkdir()
        bind(node, "part", 0)
        await until(lambda: "hook #0: the driver does not limit the memory of" in node.waiting("part"))
        limits_file(node).rmdir()
        await node.runs("part")


async def test_a_container_is_not_created_if_the_daemon_ends_before_it_answers() -> None:
    async with limiting() as node:
        uid = bind(node, "first", 0)
        await node.runs("first")
        node.process.send_signal(signal.SIGSTOP)
        (hook,) = node.kubelet.created[uid][0].hooks
        running = await asyncio.create_subprocess_exec(
            *(hook.path, *hook.args[1:]), stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        assert running.stdin is not None
        running.stdin.write(b"{}")
        running.stdin.close()
        answer = Path(hook.args[-1]) / "answer"
        await until(lambda: str(answer) in opened_by(running.pid))
        await node.kill()
        assert running.stderr is not None
        assert b"the device plugin of this node ended" in await running.stderr.read()
        assert await running.wait() == 1


def opened_by(pid: int) -> list[str]:
    """The files that the process has open."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(os.readlink(link))
        except OSError:
            continue
    return found


async def test_limits_that_a_driver_lost_are_set_again_and_everything_says_so() -> None:
    async with limiting() as node:
        uid = bind(node, "part", 0)
        await node.runs("part")
        wanted = {(node.uuid(0), group(node, uid)): 3000}
        limits_file(node).write_text("")
        await until(lambda: held(node) == wanted)
        await until(lambda: node.events("GPUMemoryLimitRestored"))
        assert node.said("had lost its limit of GPU memory; the driver holds it to 3000 MiB of")
        await until(lambda: node.counts('topogpu_memory_limit_changes_total{outcome="restored"}'))
        assert (await node.series())["topogpu_memory_limits_by_driver"] == 1


async def test_a_gpu_whose_driver_calls_are_slow_leaves_its_node_and_its_containers_the_driver() -> None:
    async with limiting() as node:
        uid = bind(node, "part", 0)
        await node.runs("part")
        node.machine(CallHangs(gpu=1, call="nvmlDeviceGetMemoryLimits_v1", seconds=2))
        limits_file(node).write_text("")
        await until(lambda: held(node) == {(node.uuid(0), group(node, uid)): 3000})
        node.machine()
        limits_file(node).write_text("")
        await until(lambda: held(node) == {(node.uuid(0), group(node, uid)): 3000})
        assert node.annotation(NODE_LIMITS) == "driver"
        assert not node.events("DriverLimitsGone")
        assert not node.said("the driver does not limit GPU memory any more")


async def test_a_container_that_starts_before_the_daemon_knows_its_driver_waits_for_it() -> None:
    async with limiting(hami_core=True) as node:
        uid = bind(node, "part", 0)
        await node.runs("part")
        await node.kill()
        node.machine(*(CallHangs(gpu=gpu, call="nvmlDeviceGetMemoryLimits_v1") for gpu in range(4)))
        await node.start()
        await until(lambda: node.registrations() == 2)
        restarting = asyncio.create_task(node.kubelet.restart_container(uid, "c0"))
        await until(lambda: node.kubelet.devices.calls.count("PreStartContainer nvidia.com/gpu") == 2)
        node.machine()
        again = await restarting
        assert not [mount for mount in again.mounts if "libvgpu" in mount.container_path]
        assert held(node)[node.uuid(0), group(node, uid)] == 3000


async def test_a_daemon_that_starts_reads_the_limits_of_running_containers_back() -> None:
    async with limiting() as node:
        uid = bind(node, "part", 0)
        await node.runs("part")
        wanted = {(node.uuid(0), group(node, uid)): 3000}
        await node.kill()
        limits_file(node).write_text("")
        await node.start()
        await node.ready()
        await until(lambda: held(node) == wanted)


async def test_a_container_that_starts_again_is_limited_in_its_new_group() -> None:
    async with limiting() as node:
        uid = bind(node, "part", 0)
        await node.runs("part")
        before = group(node, uid)
        await node.kubelet.restart_container(uid, "c0")
        assert group(node, uid) != before
        assert held(node) == {(node.uuid(0), group(node, uid)): 3000}


async def test_two_containers_of_a_pod_have_limits_of_their_own() -> None:
    async with limiting() as node:
        uid = node.bind_shares("pair", ((part(node, 0, 1000),), (part(node, 0, 2000),)))
        await node.runs("pair")
        assert held(node) == {
            (node.uuid(0), group(node, uid, "c0")): 1000,
            (node.uuid(0), group(node, uid, "c1")): 2000,
        }


async def test_running_containers_keep_what_held_them_when_the_setting_changes() -> None:
    async with limiting("--limits", "hami-core", hami_core=True) as node:
        by_library = bind(node, "library", 0)
        await node.runs("library")
        await node.kill()
        node.options = tuple("driver" if option == "hami-core" else option for option in node.options)
        await node.start()
        await until(lambda: node.annotation(NODE_LIMITS) == "driver")
        await node.ready()
        by_driver = bind(node, "driver", 1)
        await node.runs("driver")
        again = await node.kubelet.restart_container(by_library, "c0")
        assert [mount for mount in again.mounts if "libvgpu" in mount.container_path]
        assert held(node) == {(node.uuid(1), group(node, by_driver)): 3000}
        await node.kill()
        node.options = tuple("none" if option == "driver" else option for option in node.options)
        await node.start()
        await until(lambda: node.annotation(NODE_LIMITS) == "none")
        await node.ready()
        await node.kubelet.restart_container(by_driver, "c0")
        assert held(node)[node.uuid(1), group(node, by_driver)] == 3000
        bind(node, "newcomer", 2)
        await until(lambda: "the driver does not (the setting limits" in node.waiting("newcomer"))


async def test_what_a_container_uses_is_what_the_driver_counts_for_its_group() -> None:
    async with limiting() as node:
        uid = bind(node, "part", 0)
        await node.runs("part")
        Path(group(node, uid), "cgroup.procs").write_text("4711\n")
        node.machine(usage=[Process(gpu=0, pid=4711, used_mib=700)])

        async def used() -> bool:
            found = await node.series()
            return [used for name, used in found.items() if name.startswith("hami_vgpu_memory_used")] == [700 * MIB]

        await until(used)


async def test_memory_that_the_driver_reserves_is_not_offered() -> None:
    gpu = BRIDGED.gpus[0]
    machine = replace(with_driver("615.10"), gpus=tuple(replace(each, reserved_mib=600) for each in BRIDGED.gpus))
    async with daemon(description=machine) as node:
        assert node.gpus()[0].memory_mib == gpu.memory_mib - 600


async def test_a_pod_that_is_deleted_right_after_its_start_is_forgotten() -> None:
    async with limiting() as node:
        before = pipes_of(node)
        for name in ("first", "second", "third"):
            bind(node, name, 0)
        await node.runs("first", "second", "third")
        for name in ("first", "second", "third"):
            node.server.delete("pods", name, namespace="default")
        await until(lambda: not node.kubelet.running())
        await until(lambda: pipes_of(node) == before)
        assert (await node.series())["topogpu_memory_limits_by_driver"] == 0


def pipes_of(node: DaemonRig) -> list[str]:
    return [path for path in opened_by(node.process.pid) if path.endswith(("/ask", "/answer"))]


async def test_a_container_that_hami_core_holds_after_the_driver_is_not_the_drivers_any_more() -> None:
    async with limiting(hami_core=True) as node:
        uid = bind(node, "part", 0)
        await node.runs("part")
        await node.kill()
        node.description = with_driver("580.95")
        node.machine()
        await node.start()
        await until(lambda: node.annotation(NODE_LIMITS) == "hami-core")
        await node.ready()
        again = await node.kubelet.restart_container(uid, "c0")
        assert [mount for mount in again.mounts if "libvgpu" in mount.container_path]
        assert not list(node.cdi.glob("*/*_c0"))
        await until(lambda: none_is_lost(node))


async def test_limits_that_the_driver_does_not_show_are_uncertain_as_long_as_their_container_runs() -> None:
    async with limiting() as node:
        uid = bind(node, "part", 0)
        await node.runs("part")
        node.machine(CallFails(gpu=0, call="nvmlDeviceGetMemoryLimits_v1", error="GPU_IS_LOST"))
        await until(lambda: node.counts("topogpu_memory_limits_lost"))
        (said,) = node.events("GPUMemoryLimitLost")
        assert said.startswith("it is not certain that the driver holds container c0 to 3000 MiB of")
        assert held(node) == {(node.uuid(0), group(node, uid)): 3000}
        remove_group(node.kubelet.root / "cgroup/kubepods", uid, Path(group(node, uid)).name)
        await until(lambda: none_is_lost(node))


async def none_is_lost(node: DaemonRig) -> bool:
    return not await node.counts("topogpu_memory_limits_lost")


async def test_nvidias_hook_stays_only_where_it_sets_the_limits_because_an_image_may_have_its_variables() -> None:
    async with limiting("--device-list-strategy", "cdi-cri") as node:
        write_nvidias_spec(node)
        whole = DeviceShare(uuid=node.uuid(2), memory_mib=node.gpus()[2].memory_mib, cores=100)
        uids = [
            node.bind_shares("equal", ((part(node, 0), part(node, 1)),)),
            node.bind_shares("unequal", ((part(node, 0, 3000), part(node, 1, 5000)),)),
            node.bind("whole", lent=((whole,),)),
        ]
        await node.runs("equal", "unequal", "whole")
        hooks = [[hook.path for hook in node.kubelet.created[uid][0].hooks] for uid in uids]
        assert hooks == [["/bin/true", "/bin/true"], ["/bin/sh"], ["/bin/true"]]
        assert [node.env(uid).get("NVIDIA_GPU_MEMORY_LIMIT") for uid in uids] == ["3000", None, None]
        assert {held(node)[node.uuid(gpu), group(node, uids[1])] for gpu in (0, 1)} == {3000, 5000}


def write_nvidias_spec(node: DaemonRig) -> None:
    """The GPUs as NVIDIA's toolkit describes them, with its hook."""
    devices = []
    for gpu in range(len(node.description.gpus)):
        words = ["nvidia-cdi-hook", "apply-cuda-memory-limits", "--gpu-id", node.uuid(gpu)]
        hook = {"hookName": "createRuntime", "path": "/bin/true", "args": words}
        devices.append({"name": node.uuid(gpu), "containerEdits": {"hooks": [hook]}})
    spec = {"cdiVersion": "0.7.0", "kind": DEFAULT_CDI_KIND, "devices": devices}
    (node.cdi / "nvidia.json").write_text(json.dumps(spec))
