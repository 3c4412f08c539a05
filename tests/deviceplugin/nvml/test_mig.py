"""MIG devices as they are read: the real nvidia-ml-py over the fake library."""

import types
from dataclasses import asdict
from dataclasses import replace as replace_reading
from pathlib import Path

import pynvml
import pytest
from msgspec.structs import replace

from deviceplugin.machine.readings import MigReading, MigSize
from deviceplugin.nvml.calls import NvmlCalls
from deviceplugin.nvml.mig import read_mig_devices
from proto.devices import DeviceUUID
from simulation.machines import load
from simulation.machines.described import describe_reading
from simulation.machines.description import MachineDescription, MigDevice
from simulation.nvml.machine_file import CallFails, lost_gpu
from tests.deviceplugin.nvml_process import facts, over_pcie, readings

LEGACY = "MIG-GPU-03f69c50-207a-2038-9b45-23cac89cb67a/7/0"
DGX = load("dgxa100-8x-a100-40g")
DEVICES = (MigDevice("3g.20gb", 20096, 1, 0), MigDevice("1g.5gb", 4864, 7, 0, LEGACY))


def cut(devices: tuple[MigDevice, ...]) -> MachineDescription:
    """GPU 0 of a DGX A100 with MIG on."""
    return replace(DGX, gpus=(replace(DGX.gpus[0], mig="enabled", mig_devices=devices), *DGX.gpus[1:]))


@pytest.mark.needs_compiler
def test_mig_devices_are_read_as_described(tmp_path: Path) -> None:
    machine = cut(DEVICES)
    (read,) = readings(tmp_path, (machine, []))
    expected = [asdict(mig) for mig in describe_reading(machine).gpus[0].mig_devices]
    assert read["gpus"][0]["mig_devices"] == expected
    assert [(mig["profile"], mig["gi"], mig["ci"]) for mig in expected] == [("3g.20gb", 1, 0), ("1g.5gb", 7, 0)]
    assert expected[1]["uuid"] == LEGACY
    assert read["gpus"][0]["memory_mib"] == 40960
    assert read["problems"] == []


@pytest.mark.needs_compiler
def test_a_gpu_with_mig_on_has_no_nvlinks_and_the_others_keep_theirs(tmp_path: Path) -> None:
    (read,) = readings(tmp_path, (cut(DEVICES), []))
    assert read["links"][0] == over_pcie(DGX)[0]
    assert read["links"][1] == [over_pcie(DGX)[0][1], "X", *["NV12"] * 6]


@pytest.mark.needs_compiler
def test_mig_devices_that_come_and_go_are_read_anew(tmp_path: Path) -> None:
    none, both, one, off = readings(tmp_path, (cut(()), []), (cut(DEVICES), []), (cut(DEVICES[1:]), []), (DGX, []))
    found = [[mig["profile"] for mig in read["gpus"][0]["mig_devices"]] for read in (none, both, one, off)]
    assert found == [[], ["3g.20gb", "1g.5gb"], ["1g.5gb"], []]
    assert facts(off)["links"][0] == ["X", *["NV12"] * 7]


@pytest.mark.needs_compiler
def test_a_gpu_lost_keeps_its_mig_devices_on_the_list(tmp_path: Path) -> None:
    before, after = readings(tmp_path, (cut(DEVICES), []), (cut(DEVICES), [lost_gpu(0)]))
    assert {**after["gpus"][0], "problem": ""} == before["gpus"][0]
    assert after["gpus"][0]["problem"]


@pytest.mark.needs_compiler
def test_a_mode_that_cannot_be_read_now_is_the_one_it_was(tmp_path: Path) -> None:
    unknown = CallFails(gpu=0, call="nvmlDeviceGetMigMode", error="UNKNOWN")
    before, _, after = readings(tmp_path, (cut(DEVICES), []), (cut(DEVICES), [unknown]), (cut(DEVICES), [unknown]))
    assert facts(after) == facts(before)


@pytest.mark.needs_compiler
def test_a_mig_device_that_does_not_say_who_it_is_is_a_sentence(tmp_path: Path) -> None:
    silent = CallFails(gpu=0, call="nvmlDeviceGetGpuInstanceId", error="UNKNOWN")
    (read,) = readings(tmp_path, (cut(DEVICES), [silent]))
    assert read["gpus"][0]["mig_devices"] == []
    assert [line.partition(": ")[0] for line in read["problems"]] == ["GPU 0", "GPU 0"]
    assert [line.split(": ")[1] for line in read["problems"]] == ["MIG device 0", "MIG device 1"]


class NoAnswer(Exception):
    value = 6


def driver(memory_mib: int, gpu_slices: int, compute_slices: int) -> NvmlCalls:
    """An old driver with one MIG device, whose name does not tell the profile."""

    def handle(_: object, place: int) -> str:
        if place:
            raise NoAnswer
        return "mig"

    size = pynvml.c_nvmlDeviceAttributes(
        gpuInstanceSliceCount=gpu_slices, computeInstanceSliceCount=compute_slices, memorySizeMB=memory_mib
    )
    module = types.ModuleType("pynvml")
    module.__dict__.update(
        NVMLError=NoAnswer,
        nvmlDeviceGetMaxMigDeviceCount=lambda _: 7,
        nvmlDeviceGetMigDeviceHandleByIndex=handle,
        nvmlDeviceGetMemoryInfo=lambda _: types.SimpleNamespace(total=memory_mib << 20),
        nvmlDeviceGetUUID=lambda _: LEGACY,
        nvmlDeviceGetName=lambda _: "A100-SXM4-40GB",
        nvmlDeviceGetAttributes=lambda _: size,
        nvmlDeviceGetGpuInstanceId=lambda _: 7,
        nvmlDeviceGetComputeInstanceId=lambda _: 0,
    )
    return NvmlCalls(module)


@pytest.mark.parametrize(
    ("memory_mib", "slices", "gpu_memory_mib", "profile"),
    [
        (4864, (1, 1), 40960, "1g.5gb"),
        (20096, (3, 3), 40960, "3g.20gb"),
        (20096, (3, 1), 40960, "1c.3g.20gb"),
        (40192, (7, 7), 40960, "7g.40gb"),
        (9728, (1, 1), 81920, "1g.10gb"),
        (9728, (1, 1), None, "1g.10gb"),
    ],
)
def test_a_profile_is_named_by_its_size_where_the_name_does_not_tell(
    memory_mib: int, slices: tuple[int, int], gpu_memory_mib: int | None, profile: str
) -> None:
    gpu = replace_reading(describe_reading(DGX).gpus[3], memory_mib=gpu_memory_mib)
    (found,), problems = read_mig_devices(driver(memory_mib, *slices), "gpu", gpu)
    assert found == MigReading(
        uuid=DeviceUUID(LEGACY),
        profile=profile,
        gi=7,
        ci=0,
        parent=gpu.uuid,
        memory_mib=memory_mib,
        size=MigSize(gpu_slices=slices[0], compute_slices=slices[1]),
    )
    assert problems == ()
