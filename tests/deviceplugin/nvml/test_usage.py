"""The real nvidia-ml-py over the fake driver in both its forms."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from deviceplugin.nvml.calls import NvmlCalls
from deviceplugin.nvml.usage import UsageReader
from deviceplugin.usage.used import GpuProcess, GpuSample
from proto.devices import DeviceUUID
from simulation.machines import gpu_uuid, load
from simulation.nvml.build import build_library
from simulation.nvml.machine_file import (
    MACHINE_FILE_VARIABLE,
    CallFails,
    Fault,
    GpuLoad,
    LinkState,
    Process,
    Usage,
    lost_gpu,
    write_machine_file,
)

PROBE = Path(__file__).with_name("usage_probe.py")
MIB = 1 << 20
MACHINE = "hgxh100-8x-h100-80g"
BUSY: tuple[Usage, ...] = (
    GpuLoad(gpu=0, busy_percent=80, memory_busy_percent=25, celsius=71, milliwatts=512_500),
    Process(gpu=0, pid=4001, used_mib=1000, sm_percent=60),
    Process(gpu=0, pid=4001, used_mib=1000, kind="graphics"),
    Process(gpu=0, pid=4002, used_mib=500, kind="mps", sm_percent=20),
    Process(gpu=0, pid=4003, used_mib=10),
)


def read(folder: Path, library: str, *faults: Fault, machine: str = MACHINE) -> list[list[dict[str, Any]]]:
    write_machine_file(load(machine), folder / "machine", "node-a", faults, BUSY)
    done = subprocess.run(
        [sys.executable, str(PROBE), library],
        env={
            **os.environ,
            MACHINE_FILE_VARIABLE: str(folder / "machine"),
            "PYTHONPATH": str(PROBE.parents[3]),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    readings: list[list[dict[str, Any]]] = json.loads(done.stdout)
    return readings


def plain(sample: GpuSample) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(json.dumps(asdict(sample)))
    return answer


def busy_gpu() -> GpuSample:
    machine = load(MACHINE)
    return GpuSample(
        uuid=DeviceUUID(gpu_uuid(MACHINE, 0, "node-a")),
        memory_total_bytes=machine.gpus[0].memory_mib * MIB,
        memory_used_bytes=(machine.gpus[0].reserved_mib + 1000 + 1000 + 500 + 10) * MIB,
        busy_percent=80,
        memory_busy_percent=25,
        temperature_celsius=71,
        power_watts=512.5,
        nvlinks=18,
        nvlinks_active=18,
        processes=(
            GpuProcess(pid=4001, used_bytes=1000 * MIB, sm_percent=60, peak_percent=60),
            GpuProcess(pid=4002, used_bytes=500 * MIB, sm_percent=20, peak_percent=20),
            GpuProcess(pid=4003, used_bytes=10 * MIB, sm_percent=0),
        ),
    )


@pytest.mark.needs_compiler
def test_a_busy_gpu_reads_as_it_is(tmp_path: Path) -> None:
    first, second = read(tmp_path, str(build_library()))
    # The fake counts a process in two lists twice.
    expected = plain(busy_gpu()) | {"memory_used_bytes": (busy_gpu().memory_used_bytes or 0)}
    assert first[0] == second[0] == expected
    assert first[1]["processes"] == []
    assert first[1]["temperature_celsius"] == 30


@pytest.mark.needs_compiler
def test_each_refused_call_costs_its_own_fact_and_a_lost_gpu_all_of_its_own(tmp_path: Path) -> None:
    refused = [
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetProcessUtilization",
    ]
    faults = [CallFails(gpu=0, call=call, error="NOT_SUPPORTED") for call in refused]
    down = LinkState(gpu=0, link=3)
    first, _ = read(tmp_path, str(build_library()), *faults, down, lost_gpu(1))
    poor = first[0]
    assert [poor[fact] for fact in ("memory_used_bytes", "busy_percent", "temperature_celsius", "power_watts")] == [
        None
    ] * 4
    assert (poor["nvlinks"], poor["nvlinks_active"]) == (18, 17)
    assert [process["sm_percent"] for process in poor["processes"]] == [None] * 3
    assert gpu_uuid(MACHINE, 1, "node-a") not in {gpu["uuid"] for gpu in first}
    assert len(first) == 7


@pytest.mark.needs_compiler
def test_no_list_of_processes_is_not_an_empty_one(tmp_path: Path) -> None:
    fault = CallFails(gpu=0, call="nvmlDeviceGetComputeRunningProcesses", error="NOT_SUPPORTED")
    first, _ = read(tmp_path, str(build_library()), fault)
    assert first[0]["processes"] is None


class Refused(Exception):
    def __init__(self, value: int) -> None:
        self.value = value


class OddDriver:
    """A driver that answers "inactive" for links that are not there, and has no sample of any process."""

    NVML_NVLINK_MAX_LINKS = 18
    NVMLError = Refused

    def __init__(self, links: int, samples: int) -> None:
        self.links = links
        self.samples = samples

    def nvmlDeviceGetFieldValues(self, handle: object, fields: list[tuple[int, int]]) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(nvmlReturn=0, valueType=1, value=SimpleNamespace(uiVal=self.links)) for _ in fields]

    def nvmlDeviceGetNvLinkState(self, handle: object, link: int) -> int:  # noqa: N802
        return int(link == 0)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: object) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=7, usedGpuMemory=MIB)]

    def nvmlDeviceGetProcessUtilization(self, handle: object, since: int) -> list[Any]:  # noqa: N802
        raise Refused(self.samples)


def sampled(driver: OddDriver) -> GpuSample:
    calls = NvmlCalls(cast("ModuleType", driver))
    (sample,) = UsageReader().read(calls, {DeviceUUID("GPU-a"): "handle"})
    return sample


def test_links_that_the_gpu_does_not_have_are_not_counted_whatever_the_driver_says_of_them() -> None:
    assert (sampled(OddDriver(4, 6)).nvlinks, sampled(OddDriver(4, 6)).nvlinks_active) == (4, 1)
    assert sampled(OddDriver(0, 6)).nvlinks == 0


def test_an_empty_list_of_samples_is_no_use_of_the_gpu_whichever_code_says_so() -> None:
    for code, percent in ((0, 0), (6, 0), (3, None)):
        assert sampled(OddDriver(0, code)).processes == (GpuProcess(pid=7, used_bytes=MIB, sm_percent=percent),)
