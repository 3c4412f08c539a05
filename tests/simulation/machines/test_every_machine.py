"""What `nvidia-smi topo -m` prints on each described machine, read by the text reader."""

import pytest

from deviceplugin.machine.topology import build_topology
from simulation.machines import load, names
from simulation.machines.described import describe_reading
from simulation.machines.description import MachineDescription
from simulation.machines.nvidia_smi import parse_topology
from simulation.machines.printed import score_printed

WITH_GPUS = [name for name in names() if name != "cpu-only"]


def printout(machine: MachineDescription) -> str:
    """The layout of driver 535 and later."""
    gpus = [f"GPU{index}" for index in range(len(machine.gpus))]
    lines = ["\t".join(["", *gpus, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for name, row, gpu in zip(gpus, machine.topo_m, describe_reading(machine).gpus, strict=True):
        cells = [f" {cell} " if cell == "X" else cell for cell in row]
        own = "N/A" if gpu.own_numa is None else str(gpu.own_numa)
        lines.append("\t".join([name, *cells, gpu.cpu_affinity, gpu.numa_affinity or "N/A", "", own]))
    return "\n".join([*lines, "", "Legend:", "", "  X    = Self", ""])


@pytest.mark.parametrize("name", WITH_GPUS)
def test_the_printed_matrix_of_a_machine_is_read_as_it_is(name: str) -> None:
    machine = load(name)
    smi = parse_topology(printout(machine))
    assert smi.links == machine.topo_m == build_topology(describe_reading(machine)).links
    assert smi.disagreements() == ()


@pytest.mark.parametrize("name", WITH_GPUS)
def test_a_printed_score_is_the_drivers_or_less_where_a_link_hides_the_path(name: str) -> None:
    machine = load(name)
    exact = build_topology(describe_reading(machine)).scores
    for row, scores in enumerate(score_printed(parse_topology(printout(machine)).links)):
        for column, score in enumerate(scores):
            known = exact[row][column]
            assert score is not None
            assert known is not None
            hidden = 50 if machine.topo_m[row][column].startswith("NV") else 0
            assert score <= known <= score + hidden
