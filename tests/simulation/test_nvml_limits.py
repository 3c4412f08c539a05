"""The driver's limits of GPU memory by control group, as the real nvidia-ml-py sees them on the fake library."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from simulation.machines import load
from simulation.machines.description import MachineDescription
from simulation.nvml.build import build_library
from simulation.nvml.machine_file import MACHINE_FILE_VARIABLE, Process, write_machine_file

pytestmark = pytest.mark.needs_compiler

PROBE = Path(__file__).with_name("memory_limits_probe.py")
NO_LIMIT = [0, None, 0]
INVALID_ARGUMENT, NOT_SUPPORTED, FUNCTION_NOT_FOUND = "error 2", "error 3", "error 13"


def with_driver(version: str) -> MachineDescription:
    machine = load("dgxa100-8x-a100-40g")
    return replace(machine, software=replace(machine.software, driver=version))


def group(folder: Path, name: str, *pids: int) -> Path:
    """A folder that looks like a control group."""
    (folder / name).mkdir()
    (folder / name / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    return folder / name


def probe(folder: Path, machine: MachineDescription, *steps: str, usage: tuple[Process, ...] = ()) -> Any:
    write_machine_file(machine, folder / "machine", "node-a", usage=usage)
    return again(folder, *steps)


def again(folder: Path, *steps: str) -> Any:
    """Another process on the same machine."""
    done = subprocess.run(
        [sys.executable, str(PROBE), str(build_library()), *steps],
        env={**os.environ, MACHINE_FILE_VARIABLE: str(folder / "machine"), "PYTHONPATH": str(PROBE.parents[2])},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return json.loads(done.stdout)


def test_a_memory_limit_is_one_of_the_group_and_the_gpu_for_every_process(tmp_path: Path) -> None:
    one, other = group(tmp_path, "one"), group(tmp_path, "other")
    steps = (f"set 0 {one} 8000", f"get 0 {one}", f"get 1 {one}", f"get 0 {other}")
    assert probe(tmp_path, with_driver("615.10"), *steps) == [None, [0, 8000, 0], NO_LIMIT, NO_LIMIT]
    assert again(tmp_path, f"get 0 {one}", f"set 0 {one} 4000", f"get 0 {one}") == [[0, 8000, 0], None, [0, 4000, 0]]
    assert again(tmp_path, f"clear 0 {one}", f"get 0 {one}") == [None, NO_LIMIT]


def test_the_use_of_a_group_is_that_of_its_processes_on_the_gpu(tmp_path: Path) -> None:
    usage = tuple(Process(gpu=gpu, pid=pid, used_mib=mib) for gpu, pid, mib in ((0, 7, 300), (0, 8, 500), (1, 7, 70)))
    one = group(tmp_path, "one", 7, 9)
    assert probe(tmp_path, with_driver("615.10"), f"get 0 {one}", usage=usage) == [[0, None, 300]]


def test_the_memory_limit_of_a_group_that_is_gone_is_gone(tmp_path: Path) -> None:
    one = group(tmp_path, "one")
    probe(tmp_path, with_driver("615.10"), f"set 0 {one} 8000")
    (one / "cgroup.procs").unlink()
    assert again(tmp_path, f"get 0 {one}") == [INVALID_ARGUMENT]
    (one / "cgroup.procs").touch()
    assert again(tmp_path, f"get 0 {one}") == [NO_LIMIT]


def test_memory_limits_need_the_driver_from_615_on_and_no_mig(tmp_path: Path) -> None:
    one = group(tmp_path, "one")
    assert probe(tmp_path, with_driver("580.95"), f"set 0 {one} 8000") == [FUNCTION_NOT_FOUND]
    machine = with_driver("615.10")
    gpus = tuple(replace(gpu, mig="enabled") for gpu in machine.gpus)
    assert probe(tmp_path, replace(machine, gpus=gpus), f"set 0 {one} 8000") == [NOT_SUPPORTED]


def test_a_memory_limit_of_a_folder_that_is_no_group_is_refused(tmp_path: Path) -> None:
    assert probe(tmp_path, with_driver("615.10"), f"set 0 {tmp_path} 8000") == [INVALID_ARGUMENT]
