"""The daemon over the fake driver, which limits GPU memory by control group: one process for all of these tests."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from proto.annotations.keys import NODE_LIMITS
from simulation.kubelet.runtime_hooks import remove_group
from simulation.nvml.machine_file import CallFails, CallHangs, Process
from tests.deviceplugin.daemon_rig import DaemonRig
from tests.deviceplugin.limits.limiting import (
    MIB,
    bind,
    group,
    held,
    libraries,
    limiting,
    limits_file,
    opened_by,
    part,
    pipes,
)
from tests.polling import until

pytestmark = [pytest.mark.needs_compiler, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[DaemonRig]:
    """Driver and HAMi-core are there. Tests leave the driver as they found it."""
    async with limiting(hami_core=True) as rig:
        yield rig


async def test_the_driver_limits_each_gpu_of_a_container_before_it_is_created_and_no_library_is_loaded(
    node: DaemonRig,
) -> None:
    assert node.annotation(NODE_LIMITS) == "driver+hami-core"
    uid = node.bind_shares("two", ((part(node, 0, 3000), part(node, 1, 5000)),))
    await node.runs("two")
    assert held(node, uid) == {node.uuid(0): 3000, node.uuid(1): 5000}
    assert not libraries(node, uid)
    assert node.env(uid)["NVIDIA_GPU_MEMORY_LIMIT"] == "3000"  # of NVIDIA's hook, which has one for all


async def test_with_both_the_driver_holds_memory_and_hami_core_the_cores_alone(node: DaemonRig) -> None:
    uid = node.bind("both", lent=((part(node, 0, 3000, 30),),))
    await node.runs("both")
    assert held(node, uid) == {node.uuid(0): 3000}
    env = node.env(uid)
    assert (env["NVIDIA_GPU_MEMORY_REQUEST"], env["NVIDIA_GPU_MEMORY_LIMIT"]) == ("0", "3000")
    assert env["CUDA_DEVICE_SM_LIMIT_0"] == "30"
    assert "CUDA_DEVICE_MEMORY_LIMIT_0" not in env
    assert libraries(node, uid)


async def test_a_container_is_not_created_while_the_driver_refuses_its_limit(node: DaemonRig) -> None:
    limits_file(node).unlink(missing_ok=True)
    limits_file(node).mkdir()
    bind(node, "refused", 0)
    await until(lambda: "hook #0: the driver does not limit the memory of" in node.waiting("refused"))
    limits_file(node).rmdir()
    await node.runs("refused")


async def test_while_one_gpu_is_slow_lost_limits_of_others_are_set_again_and_everything_says_so(
    node: DaemonRig,
) -> None:
    uid = bind(node, "lost", 0)
    await node.runs("lost")
    node.machine(CallHangs(gpu=1, call="nvmlDeviceGetMemoryLimits_v1", seconds=2))
    limits_file(node).write_text("")
    await until(lambda: held(node, uid) == {node.uuid(0): 3000})
    node.machine()
    words = f"had lost its limit of GPU memory; the driver holds it to 3000 MiB of {node.uuid(0)} again"
    await until(lambda: f"container c0 {words}" in node.events("GPUMemoryLimitRestored"))
    await until(lambda: node.said(f"pod default/lost: container c0 {words}"))
    await until(lambda: node.counts('topogpu_memory_limit_changes_total{outcome="restored"}'))
    assert node.annotation(NODE_LIMITS) == "driver+hami-core"
    assert not node.said("the driver holds nothing")


async def test_a_container_that_starts_again_is_limited_in_its_new_group(node: DaemonRig) -> None:
    uid = bind(node, "again", 0)
    await node.runs("again")
    before = group(node, uid)
    await node.kubelet.restart_container(uid, "c0")
    assert group(node, uid) != before
    assert held(node, uid) == {node.uuid(0): 3000}


async def test_containers_of_a_pod_have_limits_of_their_own(node: DaemonRig) -> None:
    """The init container is c0, whose GPUs kubelet gives to the others."""
    shares = ((part(node, 0, 4000),), (part(node, 0, 1000),), (part(node, 0, 2000),))
    uid = node.bind_shares("three", shares, init=1)
    await node.runs("three")
    assert [held(node, uid, name) for name in ("c1", "c2")] == [{node.uuid(0): 1000}, {node.uuid(0): 2000}]


async def test_what_a_container_uses_is_what_the_driver_counts_for_its_group(node: DaemonRig) -> None:
    uid = bind(node, "using", 2)
    await node.runs("using")
    Path(group(node, uid), "cgroup.procs").write_text("4711\n")
    node.machine(usage=[Process(gpu=2, pid=4711, used_mib=700)])

    async def used() -> bool:
        found = await node.series()
        names = [name for name in found if name.startswith("hami_vgpu_memory_used") and node.uuid(2) in name]
        return [found[name] for name in names] == [700 * MIB]

    await until(used)
    node.machine()


async def test_a_pod_that_is_deleted_right_after_its_start_is_forgotten(node: DaemonRig) -> None:
    before, names = pipes(node), ("first", "second", "third")
    uids = [bind(node, name, 0) for name in names]
    await node.runs(*names)
    for name in names:
        node.server.delete("pods", name, namespace="default")
    await until(lambda: not node.kubelet.running().keys() & uids)
    await until(lambda: pipes(node) == before)


async def test_limits_that_the_driver_does_not_show_are_uncertain_as_long_as_their_container_runs(
    node: DaemonRig,
) -> None:
    uid = bind(node, "uncertain", 3)
    await node.runs("uncertain")
    node.machine(CallFails(gpu=3, call="nvmlDeviceGetMemoryLimits_v1", error="GPU_IS_LOST"))
    await until(lambda: node.counts("topogpu_memory_limits_lost"))
    words = f"it is not certain that the driver holds container c0 to 3000 MiB of {node.uuid(3)}"
    await until(lambda: any(said.startswith(words) for said in node.events("GPUMemoryLimitLost")))
    assert held(node, uid) == {node.uuid(3): 3000}
    remove_group(node.kubelet.root / "cgroup/kubepods", uid, Path(group(node, uid)).name)
    await until(lambda: none_is_lost(node))
    node.machine()


async def none_is_lost(node: DaemonRig) -> bool:
    return not await node.counts("topogpu_memory_limits_lost")


async def test_a_container_that_starts_before_the_daemon_knows_its_driver_waits_for_it(node: DaemonRig) -> None:
    uid = bind(node, "early", 0)
    await node.runs("early")
    await node.kill()
    node.machine(*(CallHangs(gpu=gpu, call="nvmlDeviceGetMemoryLimits_v1") for gpu in range(4)))
    await until(lambda: node.capacity()[1] == 0)
    await node.start()
    await until(lambda: node.capacity()[1] > 0)  # kubelet has left the connection to the daemon that was killed
    restarting = asyncio.create_task(node.kubelet.restart_container(uid, "c0"))
    await until(lambda: node.kubelet.devices.calls[-1].startswith("PreStartContainer"))
    node.machine()
    await restarting
    assert not libraries(node, uid)
    assert held(node, uid) == {node.uuid(0): 3000}


async def test_a_daemon_that_ends_fails_hooks_that_wait_and_the_next_one_sets_what_was_lost(node: DaemonRig) -> None:
    uid = bind(node, "ending", 0)
    await node.runs("ending")
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
    limits_file(node).write_text("")
    await node.start()
    await node.ready()
    await until(lambda: held(node, uid) == {node.uuid(0): 3000})
