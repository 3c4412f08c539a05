"""What an administrator of a node sees of its GPUs: `devices` and `topo` over the fake driver library."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from deviceplugin.cli import main
from simulation.cli import main as simulated
from simulation.nvml.build import build_library
from simulation.nvml.machine_file import MACHINE_FILE_VARIABLE
from simulation.on_node import write_node

MACHINE = "4x-gh200"


@pytest.mark.needs_compiler
@pytest.mark.parametrize("command", ["devices", "topo"])
def test_the_driver_shows_what_its_description_shows(command: str, tmp_path: Path) -> None:
    write_node(MACHINE, tmp_path, "n")
    environment = os.environ | {
        MACHINE_FILE_VARIABLE: str(tmp_path / "machine"),
        "NVML_LIBRARY": str(build_library()),
        "HOST_ROOT": str(tmp_path),
    }
    arguments = [sys.executable, "-m", "deviceplugin", command, "--output", "json"]
    done = subprocess.run(arguments, env=environment, check=True, capture_output=True, text=True)
    described = CliRunner().invoke(simulated, [command, "--machine", MACHINE, "--output", "json"])
    assert without_uuids(json.loads(done.stdout)) == without_uuids(json.loads(described.stdout))


def without_uuids(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer of a node whose GPUs have UUIDs of their own, without these."""
    return answer | {"gpus": [{key: value for key, value in gpu.items() if key != "uuid"} for gpu in answer["gpus"]]}


@pytest.mark.parametrize("command", ["devices", "topo"])
def test_a_missing_driver_library_gets_one_sentence(command: str) -> None:
    result = CliRunner().invoke(main, [command, "--nvml-library", "/nonexistent/nvml.so"])
    assert result.exit_code == 1
    assert "cannot load the NVML library /nonexistent/nvml.so" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
