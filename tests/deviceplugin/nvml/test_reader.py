"""The real nvidia-ml-py over the fake library, each machine in a fresh process: NVML state is per process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import simulation
from deviceplugin.machine.matrix import gpu_facts
from deviceplugin.machine.topology import build_topology
from simulation.machines.described import describe_reading
from simulation.machines.description import MachineDescription, read_machine_description

pytestmark = pytest.mark.needs_compiler

build = pytest.importorskip("simulation.nvml.build")
machine_file = pytest.importorskip("simulation.nvml.machine_file")

MACHINES = sorted((Path(str(simulation.__file__)).parent / "machines").glob("*.yaml"))
WITH_GPUS = [path for path in MACHINES if path.stem != "cpu-only"]


def described(path: Path) -> MachineDescription:
    return read_machine_description(path.read_text(), path.name)


def ask(command: str, description: MachineDescription, folder: Path) -> subprocess.CompletedProcess[str]:
    flat = folder / "machine"
    machine_file.write_machine_file(description, flat, instance="")
    machine_file.write_sysfs(description, folder / "sys")
    arguments = [command, "--output", "json", "--nvml-library", str(build.build_library()), "--host-root", str(folder)]
    return subprocess.run(
        [sys.executable, "-m", "deviceplugin", *arguments],
        env={**os.environ, "TOPOGPU_FAKE_NVML_MACHINE": str(flat)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("path", WITH_GPUS, ids=lambda path: path.stem)
def test_nvml_gives_the_matrix_the_machine_prints(path: Path, tmp_path: Path) -> None:
    description = described(path)
    result = ask("topo", description, tmp_path)
    assert result.returncode == 0, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    expected = build_topology(describe_reading(description))
    assert answer["links"] == [list(row) for row in description.topo_m]
    assert answer["scores"] == [list(row) for row in expected.scores]
    assert answer["gpus"] == [gpu_facts(gpu) for gpu in expected.gpus]


def test_a_machine_without_driver_says_so(tmp_path: Path) -> None:
    (path,) = [path for path in MACHINES if path.stem == "cpu-only"]
    result = ask("devices", described(path), tmp_path)
    assert result.returncode == 1
    assert "NVIDIA driver" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
