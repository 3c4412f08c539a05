"""NVSwitch machines and failing links: the real nvidia-ml-py over the fake library."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from simulation.machines import gpu_uuid, load
from simulation.machines.description import MachineDescription
from simulation.nvml.machine_file import Cleared, LinkState, render_machine_file
from tests.deviceplugin.nvml_process import HGX, over_pcie, printed, reading, readings

pytestmark = pytest.mark.needs_compiler

SWITCHED = ["dgx2-16x-v100-32g", "dgxa100-8x-a100-40g", "hgxh100-8x-h100-80g", "gb200-nvl72-tray"]
TRAY = load("gb200-nvl72-tray")


def with_links(machine: MachineDescription, links: int) -> MachineDescription:
    """Every NVSwitch takes so many links of each GPU."""
    assert machine.nvlink is not None
    assert machine.nvlink.switches is not None
    switches = tuple(replace(switch, links=links) for switch in machine.nvlink.switches.list)
    return replace(machine, nvlink=replace(machine.nvlink, switches=replace(machine.nvlink.switches, list=switches)))


def test_thirty_six_links_count_thirty_six(tmp_path: Path) -> None:
    read = reading(tmp_path, with_links(HGX, 9))
    assert {cell for row in read["links"] for cell in row} == {"X", "NV36"}
    first, last = (gpu_uuid(HGX.id, index, "") for index in (0, 7))
    assert read["scores"][first][last] == read["scores"][last][first] == 3610


@pytest.mark.parametrize("name", SWITCHED)
def test_a_link_that_fails_and_returns_is_seen_at_the_next_reading(name: str, tmp_path: Path) -> None:
    machine = load(name)
    down = LinkState(gpu=1, link=0)
    before, after, again = readings(tmp_path, (machine, []), (machine, [down]), (machine, [down, Cleared(gpu=1)]))
    fewer = f"NV{int(machine.topo_m[0][1].removeprefix('NV')) - 1}"
    assert before["links"] == again["links"] == printed(machine)
    assert after["links"] == [
        [cell if cell == "X" or 1 not in (a, b) else fewer for b, cell in enumerate(row)]
        for a, row in enumerate(printed(machine))
    ]
    assert after["asymmetric"] == []


def test_a_gpu_without_a_live_link_is_left_on_pcie_alone(tmp_path: Path) -> None:
    read = reading(tmp_path, HGX, *(LinkState(gpu=5, link=number) for number in range(18)))
    paths, whole = over_pcie(HGX), printed(HGX)
    assert read["links"] == [[paths[a][b] if 5 in (a, b) else whole[a][b] for b in range(8)] for a in range(8)]


def test_a_link_down_at_one_end_is_told_with_both_counts(tmp_path: Path) -> None:
    machine = load("4x-a100-pcie-80g-bridged")
    read = reading(tmp_path, machine, LinkState(gpu=0, link=0))
    first, second = (gpu_uuid(machine.id, index, "") for index in (0, 1))
    assert read["asymmetric"] == [
        f"GPU 0 ({first}) counts 11 NVLinks to GPU 1 ({second}), which counts 12 back; "
        "the pair is scored by the smaller number"
    ]
    assert read["scores"][first][second] == read["scores"][second][first] == 1120


def test_a_rack_divided_into_cliques_joins_only_the_gpus_of_one(tmp_path: Path) -> None:
    assert TRAY.fabric is not None
    text = render_machine_file(TRAY, "")
    clique = TRAY.fabric.clique
    for index in (2, 3):
        text = text.replace(f"fabric {index} 3 0 {clique} ", f"fabric {index} 3 0 {clique + 1} ")
    whole, divided = readings(tmp_path, (TRAY, []), text)
    paths = over_pcie(TRAY)
    assert whole["links"] == printed(TRAY)
    assert divided["links"] == [
        [whole["links"][a][b] if a // 2 == b // 2 else paths[a][b] for b in range(4)] for a in range(4)
    ]
    assert [gpu["fabric"]["clique"] for gpu in divided["gpus"]] == [clique, clique, clique + 1, clique + 1]
