"""Faults by name, in the text of a machine."""

import json
import socket
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation import machines
from simulation.breaking import CannotBreak, broken, mended
from simulation.breaking_command import change_machine
from simulation.nvml.machine_file import render_machine_file
from simulation.words import FAULTS

SWITCHED = render_machine_file(machines.load("gb200-nvl72-tray"), "n")
PLAIN = render_machine_file(machines.load("8x-rtx4090-dual-epyc"), "n")
NAMES = [name for name in FAULTS if name != "xidN"] + ["xid48", "xid79"]


def test_every_fault_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text()
    assert [name for name in FAULTS if f"`{name}`" not in page] == []


def faults(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("fault ")]


@pytest.mark.parametrize("name", NAMES)
def test_every_named_fault_is_on_its_gpu_alone(name: str) -> None:
    found = faults(broken(SWITCHED, 2, [name]))
    assert found
    assert {line.split()[2] for line in found} == {"2"}


def test_faults_add_up_and_go_with_their_gpu() -> None:
    text = broken(broken(SWITCHED, 0, ["xid48"]), 3, ["lost", "hang"])
    assert broken(text, 0, ["xid48"]) == text
    assert len(faults(text)) == 3
    assert [line.split()[2] for line in faults(mended(text, 3))] == ["0"]
    assert mended(text, None) == SWITCHED
    assert text.splitlines()[-1] == "end"


@given(steps=st.lists(st.tuples(st.integers(0, 3), st.lists(st.sampled_from(NAMES), max_size=3))))
def test_a_mended_machine_is_what_it_was(steps: list[tuple[int, list[str]]]) -> None:
    text = SWITCHED
    for gpu, names in steps:
        text = broken(text, gpu, names)
    for gpu in range(4):
        text = mended(text, gpu)
    assert text == SWITCHED


@pytest.mark.parametrize(
    ("gpu", "name", "why"),
    [
        (8, "lost", "the machine has no GPU 8: it has GPUs 0 to 7"),
        (-1, "lost", "the machine has no GPU -1: it has GPUs 0 to 7"),
        (0, "link-down", "GPU 0 has no NVLink"),
        (0, "fabric", "GPU 0 is in no NVSwitch fabric"),
        (0, "ecc", "GPU 0 has no ECC memory"),
        (0, "xid48", "GPU 0 has no ECC memory, so its driver never reports Xid 48"),
        (0, "row-remap", "GPU 0 remaps no memory rows"),
        (0, "reset", "GPU 0 has a driver that never asks for a reset"),
        (0, "melted", "there is no fault 'melted'; known are xidN, lost, "),
        (0, "xid", "there is no fault 'xid'"),
        (0, "xid99999", "there is no fault 'xid99999'"),
    ],
)
def test_what_cannot_break_is_one_sentence(gpu: int, name: str, why: str) -> None:
    with pytest.raises(CannotBreak, match=why):
        broken(PLAIN, gpu, [name])


def test_an_unknown_node_is_a_whole_sentence(tmp_path: Path) -> None:
    (tmp_path / "node-1").mkdir()
    (tmp_path / "node-1" / "machine").touch()
    with pytest.raises(click.ClickException, match=r"^there is no node gpu; Nodes are node-1$"):
        change_machine(str(tmp_path / "kubeconfig"), "gpu", str)
    with pytest.raises(click.ClickException, match=r"^there is no node Node1; did you mean node-1\? Nodes are node-1$"):
        change_machine(str(tmp_path / "kubeconfig"), "Node1", str)


def test_a_simulation_that_was_killed_cannot_be_broken(tmp_path: Path) -> None:
    (tmp_path / "node-1").mkdir()
    (tmp_path / "node-1" / "machine").write_text(PLAIN)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(json.dumps({"clusters": [{"cluster": {"server": address}}]}))
        change_machine(str(kubeconfig), "node-1", str.upper)
    with pytest.raises(click.ClickException, match=r"kubeconfig does not run any more; run `topogpu-sim up`"):
        change_machine(str(kubeconfig), "node-1", str)
    assert (tmp_path / "node-1" / "machine").read_text() == PLAIN.upper()
