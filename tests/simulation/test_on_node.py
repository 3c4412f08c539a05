"""What the init container of a node that simulates GPUs writes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from daemonset import render
from simulation import machines
from simulation.on_node import write_node


def test_the_gpus_of_two_nodes_have_uuids_of_their_own(tmp_path: Path) -> None:
    for node in ("a", "b"):
        (tmp_path / node).mkdir()
        assert "8 GPUs, none of them real" in write_node("dgx-a100", tmp_path / node, node)
    one, other = ((tmp_path / node / "machine").read_text() for node in ("a", "b"))
    assert one != other
    assert len(list((tmp_path / "a" / "sys" / "bus" / "pci" / "devices").glob("*/numa_node"))) == 8


@pytest.mark.parametrize("name", machines.SHORT)
def test_every_machine_that_the_chart_names_can_be_simulated(name: str) -> None:
    assert machines.load(name).gpus
    values = (render.CHART / "values.yaml").read_text()
    assert name in values[values.index("simulation:") : values.index("gpuOperator:")]


def test_the_chart_simulates_nothing_by_default() -> None:
    assert yaml.safe_load((render.CHART / "values.yaml").read_text())["simulation"]["machine"] == ""


def test_a_machine_that_nobody_described_is_refused_in_a_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "simulation.on_node", "dgx-z9", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "NODE_NAME": "a"})
    assert done.returncode == 1
    assert "dgx-z9" in done.stderr
    assert "Traceback" not in done.stderr
