"""Every call of a reading fails by itself, is not repeated in vain, and GPUs keep who they are."""

import ctypes.util
import itertools
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pynvml
import pytest
from msgspec.structs import replace

from deviceplugin.nvml.calls import CallFailed, NvmlCalls
from simulation.machines import gpu_uuid, load
from simulation.machines.description import MachineDescription, MigDevice
from simulation.nvml.machine_file import EVERY_GPU, CallFails, Fault, lost_gpu, render_machine_file
from tests.deviceplugin.nvml_process import HGX, facts, printed, readings

pytestmark = pytest.mark.needs_compiler

READ_A_MACHINE = """
from deviceplugin.nvml.library import NvmlUnavailable
from deviceplugin.nvml.reader import Nvml
try:
    Nvml().read_machine()
except NvmlUnavailable as refused:
    print(refused, f"needs_restart={refused.needs_restart}", sep=", ")
"""
CALLS = (
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetNvLinkRemotePciInfo",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetNvLinkVersion",
    "field:147",
    "field:166",
    "field:164",
    "field:90",
    "field:230",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetMemoryAffinity",
    "nvmlDeviceGetCpuAffinity",
    "nvmlDeviceGetNumaNodeId",
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlDeviceGetP2PStatus",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetComputeInstanceId",
    "nvmlDeviceGetAttributes",
    "nvmlDeviceGetCudaComputeCapability",
)
ERRORS = sorted(
    name.removeprefix("NVML_ERROR_")
    for name, code in vars(pynvml).items()
    if re.fullmatch(r"NVML_ERROR_[A-Z_]+", name) and isinstance(code, int)
)
"""Every code of nvmlReturn_t that the binding knows."""
TELLING = [
    *("UNINITIALIZED", "INVALID_ARGUMENT", "NOT_SUPPORTED", "NO_PERMISSION", "NOT_FOUND", "INSUFFICIENT_SIZE"),
    *("TIMEOUT", "FUNCTION_NOT_FOUND", "GPU_IS_LOST", "RESET_REQUIRED", "ARGUMENT_VERSION_MISMATCH"),
    *("IRQ_ISSUE", "MEMORY", "UNKNOWN"),
]
"""Those that the reader knows, and a few that are all the same to it."""
MEMORY = "nvmlDeviceGetMemoryInfo"
FAILING = 2
_VERSION = {"ARGUMENT_VERSION_MISMATCH"}

WANTED = (
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetNvLinkState",
    "field:147",
    "field:230",
    "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetMemoryAffinity",
    "nvmlDeviceGetCpuAffinity",
    "nvmlDeviceGetNumaNodeId",
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlDeviceGetP2PStatus",
    "nvmlDeviceGetCudaComputeCapability",
)
"""Calls without which a GPU is a GPU all the same."""


def cut(machine: MachineDescription, index: int) -> MachineDescription:
    """One GPU of the machine with MIG on and a device."""
    gpus = list(machine.gpus)
    gpus[index] = replace(gpus[index], mig="enabled", mig_devices=(MigDevice("1g.10gb", 9984, 7, 0),))
    return replace(machine, gpus=tuple(gpus))


SMALL = load("4x-a100-pcie-80g-bridged")
CUT = cut(SMALL, FAILING)


@pytest.fixture(scope="module")
def first_readings(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Any]]:
    """The first reading of the machine with each call failing in each way; without a fault under two empty words."""
    cases = [("", ""), *((call, error) for call in CALLS for error in (ERRORS if call == MEMORY else TELLING))]
    faults = [[CallFails(gpu=FAILING, call=call, error=error)] if call else [] for call, error in cases]
    answers = readings(tmp_path_factory.mktemp("calls"), *((CUT, fault) for fault in faults), always_new=True)
    return dict(zip(cases, answers, strict=True))


def test_no_call_of_a_reading_is_untried(first_readings: dict[tuple[str, str], dict[str, Any]]) -> None:
    asked = {re.sub(r"_v\d$", "", call) for read in first_readings.values() for call in read["asked"]}
    of_the_test = {"nvmlDeviceGetIndex", "nvmlDeviceGetFieldValues"}
    of_the_system = {"nvmlDeviceGetCount", "nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion"}
    assert asked - of_the_test == set(CALLS) - of_the_test | of_the_system


def other_links(read: dict[str, Any]) -> list[list[str]]:
    """The links among all GPUs but the failing one."""
    places = [place for place, gpu in enumerate(read["gpus"]) if gpu["index"] != FAILING]
    return [[read["links"][one][other] for other in places] for one in places]


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_fails_on_one_gpu_in_any_way_changes_nothing_of_the_others_and_loses_none(
    call: str, first_readings: dict[tuple[str, str], dict[str, Any]]
) -> None:
    whole = first_readings["", ""]
    others = [gpu for gpu in whole["gpus"] if gpu["index"] != FAILING]
    for error in TELLING:
        read = first_readings[call, error]
        assert len(read["gpus"]) + len(read["missing"]) == len(whole["gpus"]), error
        assert [gpu for gpu in read["gpus"] if gpu["index"] != FAILING] == others, error
        assert read["driver"] == whole["driver"], error
        assert other_links(read) == other_links(whole), error


@pytest.mark.parametrize(
    "error", sorted({*ERRORS} - {"NOT_SUPPORTED", "NO_PERMISSION", "FUNCTION_NOT_FOUND", *_VERSION})
)
def test_a_gpu_whose_memory_cannot_be_read_is_named_as_missing(
    error: str, first_readings: dict[tuple[str, str], dict[str, Any]]
) -> None:
    """Without its memory nothing can be placed on it; that the driver does not have the call is another matter."""
    read = first_readings[MEMORY, error]
    ((name, problem),) = read["missing"]
    assert name == f"GPU {FAILING} ({gpu_uuid(SMALL.id, FAILING, '')}) at {SMALL.gpus[FAILING].bus.lower()[4:]}"
    assert problem


def test_what_the_driver_does_not_have_is_asked_once_until_it_is_initialised_again(tmp_path: Path) -> None:
    faults = [
        CallFails(gpu=EVERY_GPU, call=call, error=error)
        for call, error in zip(WANTED, itertools.cycle(["NOT_SUPPORTED", "FUNCTION_NOT_FOUND"]), strict=False)
    ]
    first, second, third = readings(tmp_path, *3 * [(HGX, faults)], shut_down_before=2)
    assert [call for call in WANTED if not first["asked"].get(call)] == []
    assert [call for call in WANTED if second["asked"].get(call)] == []
    assert facts(second) == facts(first)
    assert {call: third["asked"][call] for call in WANTED} == {call: first["asked"][call] for call in WANTED}


def test_what_failed_for_another_reason_is_asked_again(tmp_path: Path) -> None:
    broken = CallFails(gpu=2, call="nvmlDeviceGetMemoryInfo", error="UNKNOWN")
    first, second = readings(tmp_path, (HGX, [broken]), (HGX, []))
    assert [gpu["index"] for gpu in first["gpus"]] == [0, 1, 3, 4, 5, 6, 7]
    assert second["gpus"][2]["memory_mib"] == 81559


def test_a_change_of_mig_mode_asks_everything_again(tmp_path: Path) -> None:
    refused = CallFails(gpu=FAILING, call="nvmlDeviceGetMaxPcieLinkGeneration", error="NOT_SUPPORTED")
    read = readings(tmp_path, (SMALL, [refused]), (SMALL, []), (CUT, []))
    assert [answer["gpus"][FAILING]["pcie_gen"] for answer in read] == [None, None, 4]


def test_the_far_end_of_a_link_that_was_down_is_asked_again(tmp_path: Path) -> None:
    machine = load("dgx1v-8x-v100-32g")
    down = CallFails(gpu=0, call="nvmlDeviceGetNvLinkRemotePciInfo", error="NOT_SUPPORTED")
    first, second = readings(tmp_path, (machine, [down]), (machine, []))
    assert (first["links"][0][3], second["links"]) == (machine.level(0, 3), printed(machine))


def test_a_library_shut_down_by_somebody_else_is_initialised_again(tmp_path: Path) -> None:
    first, second = readings(tmp_path, (HGX, []), (HGX, []), shut_down_before=1)
    assert facts(second) == facts(first)


@pytest.mark.parametrize(
    ("error", "says"),
    [("LIB_RM_VERSION_MISMATCH", "was upgraded"), ("DRIVER_NOT_LOADED", "was unloaded"), ("UNKNOWN", "restart")],
)
def test_a_driver_that_goes_while_it_is_used_needs_a_new_process(error: str, says: str, tmp_path: Path) -> None:
    gone = CallFails(gpu=EVERY_GPU, call="nvmlDeviceGetCount", error=error)
    _, answer = readings(tmp_path, (HGX, []), (HGX, [gone]))
    assert says in answer["unavailable"]
    assert answer["restart"] is True


def test_gpus_that_go_and_come_are_enumerated_anew(tmp_path: Path) -> None:
    machine = load("8x-rtx4090-dual-epyc")
    fewer = replace(machine, gpus=machine.gpus[:6], topo_m=())
    eight, six, again = readings(tmp_path, (machine, []), (fewer, []), (machine, []))
    assert six["gpus"] == eight["gpus"][:6]
    assert six["links"] == [row[:6] for row in eight["links"][:6]]
    assert list(six["handles"].values()) == [0, 1, 2, 3, 4, 5]
    assert facts(again) == facts(eight)


def exchanged(machine: MachineDescription, first: int, second: int, *faults: Fault) -> str:
    """The machine file with the identities of two GPUs exchanged, as another order of the bus would."""
    text = render_machine_file(machine, "", faults)
    words = [[gpu_uuid(machine.id, index, ""), machine.gpus[index].bus] for index in (first, second)]
    for one, other in zip(*words, strict=True):
        text = text.replace(one, "\0").replace(other, one).replace("\0", other)
    return text


def test_a_gpu_that_moves_to_another_index_stays_who_it_is(tmp_path: Path) -> None:
    before, after = readings(tmp_path, (HGX, []), exchanged(HGX, 3, 5))
    moved = {3: 5, 5: 3}
    assert after["handles"] == {uuid: moved.get(index, index) for uuid, index in before["handles"].items()}
    assert after["scores"].keys() == before["scores"].keys()


def test_a_gpu_that_is_lost_after_it_moved_is_not_taken_for_the_one_in_its_old_place(tmp_path: Path) -> None:
    before, after = readings(tmp_path, (HGX, []), exchanged(HGX, 3, 5, lost_gpu(5)))
    lost = after["gpus"][5]
    assert {**lost, "index": 3, "problem": ""} == before["gpus"][3]
    assert lost["problem"]
    assert after["gpus"][3]["uuid"] == before["gpus"][5]["uuid"]
    assert len({gpu["uuid"] for gpu in after["gpus"]}) == 8


class Refusal(Exception):
    def __init__(self, value: int) -> None:
        self.value = value


def grown_list(attempts: int) -> NvmlCalls:
    """A driver whose list grows while it is read, so many times."""
    answers = iter([*[Refusal(7)] * attempts, "the list"])

    def processes() -> object:
        answer = next(answers)
        if isinstance(answer, Refusal):
            raise answer
        return answer

    module = types.ModuleType("pynvml")
    module.__dict__.update(NVMLError=Refusal, processes=processes)
    return NvmlCalls(module)


def test_a_list_that_grew_while_it_was_read_is_read_again() -> None:
    assert grown_list(2).ask("processes") == "the list"
    with pytest.raises(CallFailed):
        grown_list(3).ask("processes")


@pytest.mark.skipif(ctypes.util.find_library("nvidia-ml") is not None, reason="this machine has the library")
def test_a_machine_without_the_library_says_so() -> None:
    """Seen from a process of its own: another test's library may be in the memory of this one."""
    done = subprocess.run([sys.executable, "-c", READ_A_MACHINE], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("libnvidia-ml.so.1 is not found, needs_restart=False\n")
