"""GPUs that fall ill and recover, seen through the daemon as a process."""

import pytest

from simulation import machines
from simulation.nvml.machine_file import (
    CallFails,
    CallHangs,
    FabricIs,
    Fault,
    MachineEvent,
    RowsRemapped,
    UncorrectedErrors,
    lost_gpu,
)
from tests.deviceplugin.daemon_rig import DaemonRig, daemon
from tests.polling import until

pytestmark = pytest.mark.needs_compiler

REPLICAS = 40
"""Of four GPUs."""


async def shows(node: DaemonRig, *ill: int) -> None:
    """Kubelet and the Node's annotation say that these GPUs are ill and the others well."""
    await until(lambda: node.capacity() == (REPLICAS, REPLICAS - 10 * len(ill)) and node.ill() == set(ill))
    assert await node.unhealthy() == set(ill)


async def registered_for_events(node: DaemonRig) -> None:
    await until(lambda: node.counts('topogpu_health_events_total{kind="registration"}'))


async def test_a_gpu_with_a_fatal_xid_leaves_alone_and_returns_by_itself() -> None:
    async with daemon("--remediation-seconds", "10") as node:
        await registered_for_events(node)
        writes = node.writes()
        programs_fault = MachineEvent(gpu=2, data=31)
        node.machine(programs_fault)
        await until(lambda: node.said("the driver reported XID 31"))
        node.machine(programs_fault, MachineEvent(gpu=1, data=79))
        await shows(node, 1)
        assert node.writes() == writes + 1
        await shows(node)
        await until(lambda: len(node.events("GPUHealthy")) == 1)
        name = f"GPU 1 ({node.uuid(1)})"
        assert node.events("GPUUnhealthy") == [
            f"{name} is unhealthy: the driver reported XID 79 (GPU has fallen off the bus)"
        ]
        assert node.events("GPUHealthy") == [f"{name} is healthy again"]
        assert (node.writes(), node.problems()) == (writes + 2, [])


async def test_what_no_event_tells_is_seen_and_each_gpu_has_its_own_reason() -> None:
    faults: list[Fault] = [RowsRemapped(gpu=2, pending=True)]
    async with daemon(faults=faults) as node:
        await shows(node, 2)
        await registered_for_events(node)
        # An ignored XID is followed by a poll all the same, which finds the count that rose.
        faults += [UncorrectedErrors(gpu=3, count=1), MachineEvent(gpu=3, data=31)]
        node.machine(*faults)
        await shows(node, 2, 3)
        node.machine(*faults, lost_gpu(0))
        await shows(node, 0, 2, 3)
        reasons = {
            2: "a remapped memory row waits for a GPU reset",
            3: "uncorrected memory errors: 1 new",
            0: "it does not answer: GPU is lost",
        }
        expected = [f"GPU {gpu} ({node.uuid(gpu)}) is unhealthy: {reason}" for gpu, reason in reasons.items()]
        await until(lambda: len(node.events("GPUUnhealthy")) == len(expected))
        assert node.events("GPUUnhealthy") == expected
        assert (node.events("GPUHealthy"), node.problems()) == ([], [])


async def test_a_driver_that_hangs_on_one_gpu_keeps_no_news_of_another() -> None:
    hanging: list[Fault] = [CallHangs(gpu=1, call="nvmlDeviceGetRemappedRows")]
    async with daemon("--remediation-seconds", "10") as node:
        await registered_for_events(node)
        node.machine(*hanging)
        node.machine(*hanging, lost_gpu(3))
        await until(lambda: 3 in node.ill())
        assert 1 not in node.ill()
        await shows(node, 1, 3)
        assert any("GPU 1" in event and "has not answered for 10 s" in event for event in node.events("GPUUnhealthy"))
        node.machine()
        await shows(node)
        assert node.problems() == []


async def test_a_gpu_that_hangs_from_the_start_is_missing_until_it_answers() -> None:
    hanging = CallHangs(gpu=2, call="nvmlDeviceGetMemoryInfo")
    async with daemon(faults=[hanging]) as node:
        assert [gpu.index for gpu in node.gpus()] == [0, 1, 3]
        await until(lambda: bool(node.events("GPUMissing")))
        assert node.events("GPUMissing")[0].endswith(" cannot be used: the driver has not answered for 1 s")
        series = await node.series()
        assert series["topogpu_gpus_expected"] == 4
        assert sum(value == 0 for name, value in series.items() if name.startswith("topogpu_gpu_healthy")) == 1
        node.machine()
        await until(lambda: [gpu.index for gpu in node.gpus()] == [0, 1, 2, 3])
        assert (await node.series())["topogpu_gpus_expected"] == 4


async def test_a_gpu_lost_before_the_daemon_starts_is_named_counted_and_told_of() -> None:
    async with daemon(faults=[lost_gpu(2)]) as node:
        address = node.description.gpus[2].bus.lower().removeprefix("0000")
        name = f"GPU 2 at {address}"
        await until(lambda: node.events("GPUMissing") == [f"{name} cannot be used: GPU is lost"])
        series = await node.series()
        assert series["topogpu_gpus_expected"] == 4
        assert series[f'topogpu_gpu_healthy{{device_index="2",device_uuid="{name}"}}'] == 0
        assert (await node.get("/readyz"))[1] == f"3 GPUs, 3 of them healthy; {name} cannot be used: GPU is lost\n"


@pytest.mark.parametrize("error", ["GPU_IS_LOST", "RESET_REQUIRED", "UNKNOWN"])
async def test_a_gpu_that_fails_in_the_middle_of_the_first_reading_is_named_and_expected(error: str) -> None:
    """It has told its UUID and its name, and fails at its memory."""
    async with daemon(
        "--read-seconds", "0.5", faults=[CallFails(gpu=2, call="nvmlDeviceGetMemoryInfo", error=error)]
    ) as node:
        name = f"GPU 2 ({node.uuid(2)}) at {node.description.gpus[2].bus.lower().removeprefix('0000')}"
        await until(lambda: len(node.events("GPUMissing")) == 1)
        assert node.events("GPUMissing")[0].startswith(f"{name} cannot be used: ")
        series = await node.series()
        assert series["topogpu_gpus_expected"] == 4
        assert series[f'topogpu_gpu_healthy{{device_index="2",device_uuid="{node.uuid(2)}"}}'] == 0
        assert f"{name} cannot be used" in (await node.get("/readyz"))[1]
        assert [gpu.index for gpu in node.gpus()] == [0, 1, 3]
        node.machine()
        await until(lambda: [gpu.index for gpu in node.gpus()] == [0, 1, 2, 3])


async def test_gpus_whose_fabric_is_not_ready_are_not_offered_until_it_is() -> None:
    machine = machines.load("hgxh100-8x-h100-80g")
    flags = ("--remediation-seconds", "0.5", "--read-seconds", "1")
    async with daemon(*flags, description=machine, faults=[FabricIs(state="IN_PROGRESS")], ready=False) as node:
        await until(lambda: node.ill() == set(range(8)))
        assert node.capacity()[1] == 0
        node.machine(FabricIs(state="IN_PROGRESS", gpu=5))
        await until(lambda: node.ill() == {5})
    async with daemon(
        "--health-checks", "-fabric", description=machine, faults=[FabricIs(state="IN_PROGRESS")]
    ) as node:
        assert node.ill() == set()


async def test_a_signal_that_a_driver_calls_an_invalid_argument_keeps_no_gpu_from_returning() -> None:
    unknown = [CallFails(gpu=gpu, call="field:230", error="INVALID_ARGUMENT") for gpu in range(4)]
    async with daemon("--remediation-seconds", "0.5", faults=unknown) as node:
        await registered_for_events(node)
        node.machine(*unknown, MachineEvent(gpu=1, data=94))
        await shows(node, 1)
        await shows(node)
