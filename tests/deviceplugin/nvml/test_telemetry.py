"""Telemetry through the real nvidia-ml-py over the fake driver in both its forms."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from deviceplugin.usage.telemetry import Quantity
from simulation.machines import load
from simulation.machines.description import MachineDescription, MigDevice
from simulation.nvml.build import build_library
from simulation.nvml.machine_file import (
    EVERY_GPU,
    MACHINE_FILE_VARIABLE,
    CallFails,
    CallHangs,
    Counter,
    Fault,
    GpuLoad,
    Process,
    RowsRemapped,
    UncorrectedErrors,
    Usage,
    lost_gpu,
    write_machine_file,
)

PROBE = Path(__file__).with_name("telemetry_probe.py")
HGX = load("hgxh100-8x-h100-80g")
BUSY: tuple[Usage, ...] = (
    GpuLoad(
        gpu=0,
        busy_percent=80,
        memory_busy_percent=25,
        celsius=71,
        milliwatts=512_500,
        sm_mhz=1980,
        memory_mhz=2619,
        encoder_percent=3,
        decoder_percent=4,
        clock_reasons=0x24,
    ),
    Process(gpu=0, pid=4001, used_mib=1000),
    Counter(gpu=0, field=3, value=12),
    Counter(gpu=0, field=5, value=13),
    Counter(gpu=0, field=6, value=1),
    Counter(gpu=0, field=38, value=7),
    Counter(gpu=0, field=45, value=8),
    Counter(gpu=0, field=52, value=9),
    Counter(gpu=0, field=59, value=10),
    Counter(gpu=0, field=82, value=65),
    Counter(gpu=0, field=83, value=123_456_789_012),
    Counter(gpu=0, field=94, value=2),
    Counter(gpu=0, field=138, value=1 << 33),
    Counter(gpu=0, field=139, value=3),
    Counter(gpu=0, field=142, value=4),
    Counter(gpu=0, field=197, value=5_000_000_000),
    Counter(gpu=0, field=198, value=6),
)
EXPECTED = {
    "DCGM_FI_DEV_GPU_UTIL": 80,
    "DCGM_FI_DEV_MEM_COPY_UTIL": 25,
    "DCGM_FI_DEV_ENC_UTIL": 3,
    "DCGM_FI_DEV_DEC_UTIL": 4,
    "DCGM_FI_DEV_GPU_TEMP": 71,
    "DCGM_FI_DEV_POWER_USAGE": 512.5,
    "DCGM_FI_DEV_SM_CLOCK": 1980,
    "DCGM_FI_DEV_MEM_CLOCK": 2619,
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": 0x24,
    "DCGM_FI_DEV_FB_USED": 1000,
    "DCGM_FI_DEV_FB_FREE": 81559 - 480 - 1000,
    "DCGM_FI_DEV_FB_RESERVED": 480,
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": 12,
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 0,
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": 13,
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": 1,
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": 7,
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": 8,
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": 9,
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": 10,
    "DCGM_FI_DEV_MEMORY_TEMP": 65,
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 123_456_789_012,
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 2,
    "topogpu_gpu_nvlink_sent_bytes_total": 1 << 43,
    "topogpu_gpu_nvlink_received_bytes_total": 3072,
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": 4,
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": 0,
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": 0,
    "topogpu_gpu_pcie_sent_bytes_total": 5_000_000_000,
    "topogpu_gpu_pcie_received_bytes_total": 6,
}


def read(
    folder: Path,
    *faults: Fault,
    machine: MachineDescription = HGX,
    usage: Sequence[Usage] = BUSY,
) -> list[dict[str, Any]]:
    write_machine_file(machine, folder / "machine", "node-a", faults, usage)
    done = subprocess.run(
        [sys.executable, str(PROBE), str(build_library())],
        env={**os.environ, MACHINE_FILE_VARIABLE: str(folder / "machine"), "PYTHONPATH": str(PROBE.parents[3])},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    readings: list[dict[str, Any]] = json.loads(done.stdout)
    return readings


def first(readings: list[dict[str, Any]], gpu: int = 0) -> dict[str, float]:
    values: dict[str, float] = readings[0]["gpus"][gpu]["values"]
    return values


def test_every_quantity_is_read_or_comes_from_events() -> None:
    assert {*EXPECTED, Quantity.XID_ERRORS} == set(Quantity)


@pytest.mark.needs_compiler
def test_all_that_nvml_tells_is_read_in_ten_calls_a_gpu(tmp_path: Path) -> None:
    readings = read(tmp_path)
    assert first(readings) == EXPECTED
    assert sum(readings[0]["asked"].values()) == 10 * 8
    assert readings[0]["asked"]["nvmlDeviceGetFieldValues"] == 8


@pytest.mark.needs_compiler
def test_errors_that_come_are_told(tmp_path: Path) -> None:
    values = first(read(tmp_path, UncorrectedErrors(gpu=0, count=3), RowsRemapped(gpu=0, failed=True)))
    assert (values["DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"], values["DCGM_FI_DEV_ROW_REMAP_FAILURE"]) == (3, 1)
    assert values["DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS"] == 1


@pytest.mark.needs_compiler
def test_what_the_driver_does_not_have_is_asked_once_and_has_no_value(tmp_path: Path) -> None:
    gone = ("nvmlDeviceGetEncoderUtilization", "nvmlDeviceGetDecoderUtilization", "nvmlDeviceGetPowerUsage")
    faults = [CallFails(gpu=EVERY_GPU, call=call, error="NOT_SUPPORTED") for call in (*gone, "field:82", "field:197")]
    readings = read(tmp_path, *faults)
    missing = {"ENC_UTIL", "DEC_UTIL", "POWER_USAGE", "MEMORY_TEMP"}
    without = {name: value for name, value in EXPECTED.items() if name.removeprefix("DCGM_FI_DEV_") not in missing}
    del without["topogpu_gpu_pcie_sent_bytes_total"]
    assert first(readings) == without
    assert [sum(reading["asked"].values()) for reading in readings] == [80, 56, 56]


@pytest.mark.needs_compiler
def test_a_driver_without_the_second_memory_info_tells_what_it_has(tmp_path: Path) -> None:
    values = first(read(tmp_path, CallFails(gpu=0, call="nvmlDeviceGetMemoryInfo_v2", error="FUNCTION_NOT_FOUND")))
    assert (values["DCGM_FI_DEV_FB_USED"], "DCGM_FI_DEV_FB_RESERVED" in values) == (1480, False)


@pytest.mark.needs_compiler
def test_a_gpu_that_is_lost_or_hangs_tells_nothing_and_the_others_all(tmp_path: Path) -> None:
    hangs = CallHangs(gpu=1, call="nvmlDeviceGetClockInfo")
    for fault in (lost_gpu(1), hangs):
        [reading, *_] = read(tmp_path, fault)
        told = [bool(gpu["values"]) for gpu in reading["gpus"]]
        assert told.count(False) == len(told) - 7


@pytest.mark.needs_compiler
def test_of_mig_instances_the_framebuffer_is_told(tmp_path: Path) -> None:
    devices = (
        MigDevice("1c.2g.20gb", 19968, 3, 0),
        MigDevice("1c.2g.20gb", 19968, 3, 1),
        MigDevice("1g.10gb", 9984, 7, 0),
    )
    gpus = (replace(HGX.gpus[0], mig="enabled", mig_devices=devices), *HGX.gpus[1:])
    [reading, *_] = read(tmp_path, machine=replace(HGX, gpus=gpus))
    told = [(gi, profile, len(uuids)) for gi, profile, uuids, _ in reading["gpus"][0]["instances"]]
    assert told == [(3, "2g.20gb", 2), (7, "1g.10gb", 1)]
    assert [values for *_, values in reading["gpus"][0]["instances"]] == [
        {"DCGM_FI_DEV_FB_USED": 0, "DCGM_FI_DEV_FB_FREE": 19968, "DCGM_FI_DEV_FB_RESERVED": 0},
        {"DCGM_FI_DEV_FB_USED": 0, "DCGM_FI_DEV_FB_FREE": 9984, "DCGM_FI_DEV_FB_RESERVED": 0},
    ]
    assert "DCGM_FI_DEV_GPU_UTIL" not in reading["gpus"][0]["values"]
