"""The pollable signals, by the real nvidia-ml-py over the fake library, in a fresh process."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from simulation.machines import gpu_uuid, load
from simulation.machines.description import MachineDescription
from simulation.nvml.machine_file import (
    CallFails,
    Cleared,
    FabricIs,
    Fault,
    PagesPending,
    RecoveryActionIs,
    RowsRemapped,
    UncorrectedErrors,
    lost_gpu,
    write_machine_file,
)
from tests.deviceplugin.nvml_process import lines_of

pytestmark = pytest.mark.needs_compiler

POLL = """
import dataclasses, json, os, sys
from deviceplugin.nvml.reader import Nvml
from deviceplugin.nvml.calls import NvmlCalls
from deviceplugin.nvml.signals import poll_health
library, machine_file, gpus, *states = sys.argv[1:]
nvml, asked = Nvml(library), []
ask = NvmlCalls.ask
NvmlCalls.ask = lambda self, function, *rest: (asked.append(function), ask(self, function, *rest))[1]
for state in states:
    os.replace(state, machine_file)
    if state.endswith("reopened"):
        nvml.close()
    calls = nvml.calls()
    asked.clear()
    answers = poll_health(calls, gpus.split(","))
    print(json.dumps({"answers": [dataclasses.asdict(answer) for answer in answers], "asked": asked}))
"""

H100 = load("hgxh100-8x-h100-80g")
V100 = load("dgx1v-8x-v100-32g")
WELL: dict[str, Any] = {
    "recovery_action": 0,
    "remap_pending": False,
    "remap_failed": False,
    "pages_pending": False,
    "uncorrected": 0,
    "fabric_broken": False,
    "fabric_unhealthy": False,
    "unread": "",
}


def polls(
    folder: Path, machine: MachineDescription, *states: Sequence[Fault], gpus: Sequence[int] = (1,), reopened: int = 0
) -> list[dict[str, Any]]:
    """One process polls `gpus` once in each state; before state `reopened` it opens the library again."""
    files = [folder / f"state-{n}{'-reopened' if n and n == reopened else ''}" for n in range(len(states))]
    for path, faults in zip(files, states, strict=True):
        write_machine_file(machine, path, "", faults)
    current = folder / "machine"
    uuids = ",".join(gpu_uuid(machine.id, gpu, "") for gpu in gpus)
    return lines_of(POLL, current, uuids, *map(str, files))


def signals(folder: Path, machine: MachineDescription, *states: Sequence[Fault]) -> list[dict[str, Any]]:
    """Of GPU 1, in each state."""
    return [poll["answers"][0]["signals"] for poll in polls(folder, machine, *states)]


def test_every_signal_of_a_new_gpu_is_read_and_cleared_again(tmp_path: Path) -> None:
    insufficient = FabricIs(gpu=1, state="COMPLETED", status="INSUFFICIENT_RESOURCES")
    assert signals(
        tmp_path,
        H100,
        [],
        [RecoveryActionIs(gpu=1, action=4)],
        [RowsRemapped(gpu=1, pending=True)],
        [RowsRemapped(gpu=1, failed=True)],
        [UncorrectedErrors(gpu=1, count=7)],
        [FabricIs(gpu=1, state="IN_PROGRESS")],
        [insufficient],
        [RowsRemapped(gpu=1, failed=True), UncorrectedErrors(gpu=1, count=7), insufficient, Cleared(gpu=1)],
    ) == [
        WELL,
        {**WELL, "recovery_action": 4},
        {**WELL, "remap_pending": True},
        {**WELL, "remap_failed": True},
        {**WELL, "uncorrected": 7},
        {**WELL, "fabric_broken": True},
        {**WELL, "fabric_broken": True, "fabric_unhealthy": True},
        WELL,
    ]


def test_a_gpu_before_ampere_retires_pages(tmp_path: Path) -> None:
    remapped = RowsRemapped(gpu=1, pending=True)
    without, pending, other = signals(tmp_path, V100, [], [PagesPending(gpu=1)], [remapped])
    assert without == other == {**WELL, "recovery_action": None}
    assert pending == {**without, "pages_pending": True}


def test_gpus_answer_one_by_one(tmp_path: Path) -> None:
    (poll,) = polls(tmp_path, H100, [lost_gpu(1), RecoveryActionIs(gpu=2, action=1)], gpus=(0, 1, 2))
    assert poll["answers"].pop(1) == {"gpu": gpu_uuid(H100.id, 1, ""), "problem": "GPU is lost", "certain": True}
    assert [answer["signals"] for answer in poll["answers"]] == [WELL, {**WELL, "recovery_action": 1}]


def test_a_gpu_that_is_no_longer_there_does_not_answer(tmp_path: Path) -> None:
    whole, less = polls(tmp_path, H100, [], [CallFails(gpu=1, call="nvmlDeviceGetHandleByUUID", error="NOT_FOUND")])
    assert whole["answers"][0]["signals"] == WELL
    assert less["answers"] == [{"gpu": gpu_uuid(H100.id, 1, ""), "problem": "Not Found", "certain": True}]


def test_a_signal_that_cannot_be_read_is_neither_good_nor_bad(tmp_path: Path) -> None:
    failing = CallFails(gpu=1, call="nvmlDeviceGetTotalEccErrors", error="UNKNOWN")
    read, again = signals(tmp_path, H100, [failing], [])
    assert {**read, "unread": ""} == {**WELL, "uncorrected": None}
    assert read["unread"].startswith("nvmlDeviceGetTotalEccErrors: ")
    assert again == WELL


def test_a_signal_the_gpu_does_not_have_is_asked_for_once_until_the_library_is_opened_again(tmp_path: Path) -> None:
    old = replace(H100, unsupported=H100.unsupported | {"field:230", "nvmlDeviceGetRemappedRows"})
    first, second, reopened = polls(tmp_path, old, [], [], [], reopened=2)
    absent = {"nvmlDeviceGetFieldValues", "nvmlDeviceGetRemappedRows"}
    assert absent < set(first["asked"])
    assert absent & set(second["asked"]) == set()
    assert reopened["asked"] == first["asked"]
    assert [poll["answers"][0]["signals"] for poll in (first, second, reopened)] == [
        {**WELL, "recovery_action": None}
    ] * 3
