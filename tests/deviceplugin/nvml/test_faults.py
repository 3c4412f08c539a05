"""What goes wrong with a GPU, a call or a driver: the real nvidia-ml-py over the fake library, in a fresh process."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from simulation.machines import gpu_uuid, load
from simulation.nvml.machine_file import (
    EVERY_GPU,
    CallFails,
    Cleared,
    FabricIs,
    Fault,
    LinkState,
    LinkTypesUnknown,
    lost_gpu,
)
from tests.deviceplugin.nvml_process import HGX, facts, over_pcie, printed, reading, readings

pytestmark = pytest.mark.needs_compiler


@pytest.mark.parametrize("error", ["GPU_IS_LOST", "RESET_REQUIRED"])
def test_a_gpu_lost_after_the_first_reading_stays_listed_without_its_pairs(tmp_path: Path, error: str) -> None:
    lost = CallFails(gpu=3, call="*", error=error)
    before, after, again = readings(tmp_path, (HGX, []), (HGX, [lost]), (HGX, [lost, Cleared(gpu=3)]))
    assert [gpu["uuid"] for gpu in after["gpus"]] == [gpu_uuid(HGX.id, i, "") for i in range(8)]
    assert after["gpus"][3]["problem"]
    assert {**after["gpus"][3], "problem": ""} == before["gpus"][3]
    assert [gpu for gpu in after["gpus"] if gpu["index"] != 3] == [gpu for gpu in before["gpus"] if gpu["index"] != 3]
    assert after["pairs"] == [pair for pair in before["pairs"] if 3 not in pair]
    assert len(after["problems"]) == 1
    assert after["problems"][0].startswith("GPU 3: ")
    assert after["links"][3] == ["?", "?", "?", "X", "?", "?", "?", "?"]
    assert after["links"][0] == ["X", "NV18", "NV18", "?", "NV18", "NV18", "NV18", "NV18"]
    assert facts(again) == facts(before)


def test_a_gpu_lost_before_the_first_reading_is_only_a_problem(tmp_path: Path) -> None:
    read = reading(tmp_path, HGX, lost_gpu(0))
    assert [gpu["index"] for gpu in read["gpus"]] == [1, 2, 3, 4, 5, 6, 7]
    assert [line.partition(":")[0] for line in read["problems"]] == ["GPU 0"]
    assert read["links"][0] == ["X", *["NV18"] * 6]


def test_a_gpu_lost_in_the_middle_of_its_reading_keeps_what_was_known(tmp_path: Path) -> None:
    before, after = readings(tmp_path, (HGX, []), (HGX, [CallFails(gpu=5, call="nvlink", error="GPU_IS_LOST")]))
    assert {**after["gpus"][5], "problem": ""} == before["gpus"][5]
    assert after["gpus"][5]["problem"]
    assert after["pairs"] == [pair for pair in before["pairs"] if 5 not in pair]


def test_a_gpu_lost_while_pairs_are_read_takes_its_pairs_along(tmp_path: Path) -> None:
    gone = CallFails(gpu=7, call="nvmlDeviceGetP2PStatus", error="GPU_IS_LOST")
    before, after = readings(tmp_path, (HGX, []), (HGX, [gone]))
    assert after["pairs"] == [pair for pair in before["pairs"] if 7 not in pair]
    assert after["gpus"] == before["gpus"]


SWITCHED = ["dgx2-16x-v100-32g", "dgxa100-8x-a100-40g", "hgxh100-8x-h100-80g", "gb200-nvl72-tray"]
NO_COUNT = CallFails(gpu=EVERY_GPU, call="field:147", error="NOT_SUPPORTED")


@pytest.mark.parametrize("name", SWITCHED)
@pytest.mark.parametrize(
    ("faults", "evidence"),
    [
        ([], "field"),
        ([NO_COUNT], "type"),
        ([LinkTypesUnknown()], "field"),
        ([NO_COUNT, LinkTypesUnknown()], "address"),
        (
            [NO_COUNT, CallFails(gpu=EVERY_GPU, call="nvmlDeviceGetNvLinkRemoteDeviceType", error="NOT_SUPPORTED")],
            "address",
        ),
    ],
    ids=["told", "no count", "types unknown", "no count and types unknown", "no count and types refused"],
)
def test_a_switched_machine_gives_its_matrix_however_its_links_are_told(
    name: str, faults: list[Fault], evidence: str, tmp_path: Path
) -> None:
    machine = load(name)
    read = reading(tmp_path, machine, *faults)
    assert {gpu["switch_evidence"] for gpu in read["gpus"]} == {evidence}
    assert read["links"] == printed(machine)


@pytest.mark.parametrize("name", ["dgx1v-8x-v100-32g", "4x-gh200", "4x-a100-pcie-80g-bridged"])
def test_links_between_gpus_need_no_types(name: str, tmp_path: Path) -> None:
    machine = load(name)
    assert reading(tmp_path, machine, LinkTypesUnknown())["links"] == printed(machine)


@pytest.mark.parametrize("more", [[], [NO_COUNT], [NO_COUNT, LinkTypesUnknown()]])
def test_a_link_down_narrows_its_gpus_pairs_both_ways(more: list[Fault], tmp_path: Path) -> None:
    links = reading(tmp_path, HGX, LinkState(gpu=2, link=17), *more)["links"]
    assert links[2] == ["NV17", "NV17", "X", *["NV17"] * 5]
    assert [row[2] for row in links] == links[2]
    assert {links[a][b] for a in range(8) for b in range(8) if a != b and 2 not in (a, b)} == {"NV18"}


def test_a_bridge_that_is_down_at_one_end_counts_for_neither_direction(tmp_path: Path) -> None:
    machine = load("4x-a100-pcie-80g-bridged")
    links = reading(tmp_path, machine, LinkState(gpu=0, link=0))["links"]
    assert links == [list(column) for column in zip(*links, strict=True)]
    assert sorted(set(links[0]) - set(printed(machine)[0])) == ["NV11"]


@pytest.mark.parametrize(
    "fabric", [FabricIs(state="IN_PROGRESS"), FabricIs(state="COMPLETED", status="INSUFFICIENT_RESOURCES")]
)
def test_a_fabric_that_is_not_ready_leaves_the_pcie_paths(fabric: FabricIs, tmp_path: Path) -> None:
    read = reading(tmp_path, HGX, fabric)
    assert read["links"] == over_pcie(HGX)
    assert read["problems"] == []


def test_one_gpu_off_the_fabric_takes_only_its_own_pairs_to_pcie(tmp_path: Path) -> None:
    links = reading(tmp_path, HGX, FabricIs(gpu=6, state="IN_PROGRESS"))["links"]
    paths, whole = over_pcie(HGX), printed(HGX)
    assert links == [[paths[a][b] if 6 in (a, b) else whole[a][b] for b in range(8)] for a in range(8)]


@pytest.mark.parametrize(
    ("call", "field", "degraded"),
    [
        ("nvmlDeviceGetMinorNumber", "minor", None),
        ("nvmlDeviceGetMaxPcieLinkGeneration", "pcie_gen", None),
        ("nvmlDeviceGetCurrPcieLinkWidth", "pcie_width", None),
        ("nvmlDeviceGetCpuAffinity", "cpu_affinity", ""),
        ("nvmlDeviceGetMemoryAffinity", "numa_affinity", ""),
        ("nvmlDeviceGetGpuFabricInfoV", "fabric", None),
        ("field:147", "switch_evidence", "type"),
    ],
)
def test_one_call_that_fails_twice_in_a_row_degrades_one_field(
    call: str, field: str, degraded: object, tmp_path: Path
) -> None:
    failing = (HGX, [CallFails(gpu=4, call=call, error="UNKNOWN")])
    before, once, twice, again, well = readings(tmp_path, (HGX, []), failing, failing, failing, (HGX, []))
    expected = [{**gpu, field: degraded} if gpu["index"] == 4 else gpu for gpu in before["gpus"]]
    assert facts(once) == {**facts(before), "doubtful": True}
    assert facts(twice) == facts(again) == {**facts(before), "gpus": expected}
    assert facts(well) == facts(before)


def test_a_gpu_whose_memory_fails_twice_in_a_row_is_unhealthy_and_keeps_all_that_was_known(tmp_path: Path) -> None:
    failing = (HGX, [CallFails(gpu=4, call="nvmlDeviceGetMemoryInfo", error="UNKNOWN")])
    before, once, twice, well = readings(tmp_path, (HGX, []), failing, failing, (HGX, []))
    assert (once["gpus"], once["doubtful"]) == (before["gpus"], True)
    assert twice["gpus"] == [
        {**gpu, "problem": "Unknown Error"} if gpu["index"] == 4 else gpu for gpu in before["gpus"]
    ]
    assert facts(well) == facts(before)


def test_a_failure_that_comes_again_after_a_good_reading_is_a_first_one(tmp_path: Path) -> None:
    failing = (HGX, [CallFails(gpu=4, call="nvmlDeviceGetMemoryInfo", error="UNKNOWN")])
    read = readings(tmp_path, (HGX, []), failing, (HGX, []), failing)
    assert [one["gpus"] == read[0]["gpus"] for one in read] == [True] * 4
    assert [one["doubtful"] for one in read] == [False, True, False, True]


def test_a_pair_whose_path_fails_once_keeps_it(tmp_path: Path) -> None:
    machine = load("4x-a100-pcie-80g-bridged")
    failing = (machine, [CallFails(gpu=1, call="nvmlDeviceGetTopologyCommonAncestor", error="UNKNOWN")])
    before, once, twice = readings(tmp_path, (machine, []), failing, failing)
    assert (once["links"], once["doubtful"]) == (before["links"], True)
    assert twice["links"] != before["links"]


@pytest.mark.parametrize("call", ["field:230", "nvmlDeviceGetMigMode", "nvmlDeviceGetP2PStatus"])
def test_calls_with_another_witness_change_nothing(call: str, tmp_path: Path) -> None:
    failing = (HGX, [CallFails(gpu=4, call=call, error="UNKNOWN")])
    before, _, after = readings(tmp_path, (HGX, []), failing, failing)
    assert facts(after) == facts(before)


def test_an_ancestor_nobody_tells_leaves_nvlink_as_it_is(tmp_path: Path) -> None:
    call = CallFails(gpu=4, call="nvmlDeviceGetTopologyCommonAncestor", error="UNKNOWN")
    assert reading(tmp_path, HGX, call)["links"] == printed(HGX)


@pytest.mark.parametrize(
    ("init", "says", "restart"),
    [
        ("DRIVER_NOT_LOADED", "driver is not loaded", False),
        ("LIB_RM_VERSION_MISMATCH", "was upgraded", True),
        ("UNKNOWN", "restart this process", True),
        ("NO_PERMISSION", "cannot be used", False),
    ],
)
def test_a_library_without_its_driver_says_so_in_a_sentence(
    init: str, says: str, restart: bool, tmp_path: Path
) -> None:
    machine = replace(HGX, software=replace(HGX.software, init=init))
    (answer,) = readings(tmp_path, (machine, []))
    assert says in answer["unavailable"]
    assert "\n" not in answer["unavailable"]
    assert answer["restart"] is restart


def test_a_driver_that_comes_later_is_used_by_the_same_process(tmp_path: Path) -> None:
    absent = CallFails(gpu=EVERY_GPU, call="nvmlInitWithFlags", error="DRIVER_NOT_LOADED")
    first, second = readings(tmp_path, (HGX, [absent]), (HGX, []))
    assert "not loaded" in first["unavailable"]
    assert second["links"] == printed(HGX)


@pytest.mark.parametrize("content", [None, "not a library"])
def test_a_library_that_cannot_be_loaded_is_named_in_a_sentence(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "libnvidia-ml.so.1"
    if content is not None:
        path.write_text(content)
    (answer,) = readings(tmp_path, (HGX, []), library=str(path))
    assert answer["unavailable"].startswith(f"cannot load the NVML library {path}: ")
    assert "\n" not in answer["unavailable"]
