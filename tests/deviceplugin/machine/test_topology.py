from dataclasses import replace
from pathlib import Path

import pytest

import simulation
from deviceplugin.machine.bandwidth import SOCKET_LINKS, socket_link
from deviceplugin.machine.readings import Fabric, MachineReading, PcieLevel, PeerStatus, SwitchEvidence
from deviceplugin.machine.topology import (
    TOKENS,
    WEIGHTS,
    AsymmetricPair,
    Topology,
    asymmetric_pairs,
    build_topology,
    pair_scores,
)
from proto.devices import DeviceUUID
from simulation.machines.described import describe_reading
from simulation.machines.description import MachineDescription, read_machine_description

MACHINES = sorted((Path(str(simulation.__file__)).parent / "machines").glob("*.yaml"))


def described(name: str) -> MachineDescription:
    (path,) = [path for path in MACHINES if path.stem == name]
    return read_machine_description(path.read_text(), path.name)


def reading(name: str) -> MachineReading:
    return describe_reading(described(name))


def topology(name: str) -> Topology:
    return build_topology(reading(name))


@pytest.mark.parametrize("name", [path.stem for path in MACHINES])
def test_a_machine_has_the_matrix_it_prints(name: str) -> None:
    assert topology(name).links == described(name).topo_m


@pytest.mark.parametrize(
    ("name", "pair", "gbps"),
    [
        ("dgx1v-8x-v100-32g", (0, 3), 40),
        ("dgx1v-8x-v100-32g", (0, 1), 20),
        ("dgx1v-8x-v100-32g", (0, 5), 6),
        ("dgx2-16x-v100-32g", (0, 15), 120),
        ("dgxa100-8x-a100-40g", (0, 7), 240),
        ("hgxh100-8x-h100-80g", (0, 7), 371),
        ("4x-gh200", (0, 3), 124),
        ("gb200-nvl72-tray", (0, 3), 722),
        ("4x-a100-pcie-80g-bridged", (0, 1), 240),
        ("4x-a100-pcie-80g-bridged", (0, 2), 10),
        ("8x-rtx4090-dual-epyc", (0, 1), 18),
        ("8x-rtx4090-dual-epyc", (0, 4), 16),
    ],
)
def test_the_model_gives_its_quoted_bandwidth(name: str, pair: tuple[int, int], gbps: int) -> None:
    value = topology(name).bandwidth_gbps[pair[0]][pair[1]]
    assert value is not None
    assert round(value) == gbps


def test_weights_are_hamis() -> None:
    assert [WEIGHTS[TOKENS[level]] for level in PcieLevel] == [60, 50, 40, 30, 20, 10]


def test_links_and_path_add_up() -> None:
    scores = topology("dgx1v-8x-v100-32g").scores
    assert scores[0] == (0, 150, 130, 230, 210, 10, 10, 10)


def test_scores_leave_out_what_cannot_be_computed() -> None:
    machine = reading("4x-gh200")
    pairs = {**machine.pairs, (0, 1): replace(machine.pairs[0, 1], level=None)}
    scores = pair_scores(build_topology(replace(machine, pairs=pairs)))
    first, second, third, _ = (gpu.uuid for gpu in machine.gpus)
    assert second not in scores[first]
    assert first not in scores[second]
    assert scores[first][third] == scores[third][first] == 610


def test_scores_are_told_among_the_shared_devices_only() -> None:
    machine = reading("4x-gh200")
    first, second = (gpu.uuid for gpu in machine.gpus[:2])
    mig = DeviceUUID("MIG-x")
    assert pair_scores(build_topology(machine), [first, second, mig]) == {
        first: {second: 610},
        second: {first: 610},
        mig: {},
    }


def test_a_pair_whose_ends_disagree_is_told_and_scored_by_the_smaller_count() -> None:
    machine = reading("4x-gh200")
    first, second = machine.gpus[:2]
    pairs = {**machine.pairs, (0, 1): replace(machine.pairs[0, 1], links_there=6, links_back=5)}
    uneven = replace(machine, pairs=pairs)
    assert asymmetric_pairs(machine) == ()
    (pair,) = asymmetric_pairs(uneven)
    assert pair == AsymmetricPair(first=first, second=second, links_there=6, links_back=5)
    assert pair.sentence == (
        f"GPU 0 ({first.uuid}) counts 6 NVLinks to GPU 1 ({second.uuid}), which counts 5 back; "
        "the pair is scored by the smaller number"
    )
    scores = build_topology(uneven).scores
    assert scores[0][1] == scores[1][0] == 510


HEALTHY = Fabric(state=3, status=0, cluster="c", clique=0)


@pytest.mark.parametrize(
    ("first", "usable"),
    [
        (HEALTHY, True),
        (None, True),
        (replace(HEALTHY, state=2), False),
        (replace(HEALTHY, status=999), False),
        (replace(HEALTHY, clique=1), False),
    ],
)
def test_switch_links_count_only_in_one_working_fabric(first: Fabric | None, usable: bool) -> None:
    machine = reading("hgxh100-8x-h100-80g")
    gpus = [replace(gpu, fabric=HEALTHY) for gpu in machine.gpus]
    gpus[0] = replace(gpus[0], fabric=first)
    links = build_topology(replace(machine, gpus=tuple(gpus))).links
    assert (links[0][7] == "NV18") == usable
    assert links[1][7] == "NV18"


def test_the_narrower_gpu_decides_behind_switches() -> None:
    machine = reading("hgxh100-8x-h100-80g")
    gpus = (replace(machine.gpus[0], switch_links=17), *machine.gpus[1:])
    links = build_topology(replace(machine, gpus=gpus)).links
    assert (links[0][1], links[1][0], links[1][2]) == ("NV17", "NV17", "NV18")


@pytest.mark.parametrize(
    ("status", "evidence", "usable"),
    [
        (PeerStatus.OK, SwitchEvidence.ADDRESS, True),
        (PeerStatus.UNREADABLE, SwitchEvidence.TYPE, True),
        (PeerStatus.UNREADABLE, SwitchEvidence.ADDRESS, False),
        (PeerStatus.REFUSED, SwitchEvidence.FIELD, False),
    ],
)
def test_inferred_switches_need_the_drivers_word(status: PeerStatus, evidence: SwitchEvidence, usable: bool) -> None:
    machine = reading("dgxa100-8x-a100-40g")
    gpus = tuple(replace(gpu, switch_evidence=evidence) for gpu in machine.gpus)
    pairs = {key: replace(pair, p2p_nvlink=status) for key, pair in machine.pairs.items()}
    assert (build_topology(replace(machine, gpus=gpus, pairs=pairs)).links[0][7] == "NV12") == usable


def test_mig_takes_the_links_away() -> None:
    machine = reading("hgxh100-8x-h100-80g")
    gpus = (replace(machine.gpus[0], mig_enabled=True), *machine.gpus[1:])
    links = build_topology(replace(machine, gpus=gpus)).links
    assert not links[0][1].startswith("NV")
    assert links[1][2] == "NV18"


@pytest.mark.parametrize(
    ("cpu", "key"),
    [
        ("Intel(R) Xeon(R) CPU E5-2698 v4 @ 2.20GHz", "intel-qpi"),
        ("Intel(R) Xeon(R) Platinum 8168 CPU @ 2.70GHz", "intel-upi-skl"),
        ("Intel(R) Xeon(R) Platinum 8480C", "intel-upi-spr"),
        ("INTEL(R) XEON(R) PLATINUM 8580", "intel-upi-emr"),
        ("AMD EPYC 7742 64-Core Processor", "amd-epyc"),
        ("NVIDIA Grace", "nvidia-grace"),
    ],
)
def test_a_cpu_model_tells_its_socket_link(cpu: str, key: str) -> None:
    assert socket_link(cpu) == SOCKET_LINKS[key]
