import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import simulation
from simulation.machines import gpu_uuid, load, names
from simulation.machines.description import (
    DescribedGpu,
    MachineDescription,
    MigDevice,
    cpu_numbers,
    mig_uuid,
    read_machine_description,
)
from simulation.machines.yaml_tree import MachineDescriptionError
from simulation.nvml.build import build_library
from simulation.nvml.machine_file import (
    MACHINE_FILE_VARIABLE,
    Cleared,
    FabricIs,
    Fault,
    LinkState,
    lost_gpu,
    write_machine_file,
    write_sysfs,
)

pytestmark = pytest.mark.needs_compiler

PROBE = Path(__file__).with_name("nvml_probe.py")
MIG_INSTANCES_PROBE = Path(__file__).with_name("mig_instances_probe.py")
ROOT = PROBE.parents[2]
WITH_GPUS = [name for name in names() if name != "cpu-only"]


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tg", dir="/tmp") as path:
        yield Path(path)


def probe(folder: Path, machine: MachineDescription, *faults: Fault, asking: Path = PROBE) -> dict[str, Any]:
    write_machine_file(machine, folder / "machine", "node-a", faults)
    done = subprocess.run(
        [sys.executable, str(asking), str(build_library())],
        env={**os.environ, MACHINE_FILE_VARIABLE: str(folder / "machine"), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


def refused(machine: MachineDescription, call: str) -> bool:
    return call in machine.unsupported


def expected_link(machine: MachineDescription, index: int, number: int) -> list[object]:
    ends = machine.links(index)
    if not ends:
        return ["error 3"] * 3
    if number >= len(ends):
        return ["error 2"] * 3
    end = ends[number]
    return [1, end.bus or "FFFFFFFF:FF:FF.0", 2 if end.peer is None else 0]


def expected_fields(machine: MachineDescription, index: int) -> dict[str, object]:
    links, nvlink = len(machine.links(index)), machine.nvlink
    count: object = "error 3" if not links or refused(machine, "field:147") else machine.switch_links(index)
    return {
        "90": nvlink.mbps if nvlink else "error 3",
        "91": links or "error 3",
        "147": count,
        "164": nvlink.mbps if nvlink else "error 3",
        "165": 1 if links else "error 3",
        "166": nvlink.version if nvlink else "error 3",
        "230": "error 3" if refused(machine, "field:230") else 0,
        "5555": "error 3",
    }


ARCHITECTURES = {"volta": 5, "turing": 6, "ampere": 7, "ada": 8, "hopper": 9, "blackwell": 10}
"""nvmlDeviceArchitecture_t."""
HBM = ("volta", "ampere", "hopper", "blackwell")
GDDR = {(8, 6), (12, 0)}
"""Compute capabilities of these generations' GPUs without HBM."""
UNSIGNED, LONG_LONG, MISSING = 1, 3, "error 3"


def expected_kind(gpu: DescribedGpu) -> list[object]:
    brand = 5 if "GeForce" in gpu.name else 2 if gpu.name.startswith("Tesla") else 14
    return [ARCHITECTURES[gpu.arch], brand, [int(gpu.ecc)] * 2]


def expected_types(machine: MachineDescription, gpu: DescribedGpu) -> dict[str, object]:
    return {
        "4": LONG_LONG if gpu.ecc else MISSING,
        "82": UNSIGNED if gpu.ecc and gpu.arch in HBM and gpu.compute_capability not in GDDR else MISSING,
        "83": LONG_LONG,
        "91": UNSIGNED if machine.nvlink else MISSING,
        "138": LONG_LONG if machine.nvlink else MISSING,
    }


def bits(words: list[str]) -> frozenset[int]:
    return frozenset(64 * at + bit for at, word in enumerate(words) for bit in range(64) if int(word, 16) >> bit & 1)


@pytest.mark.parametrize("name", WITH_GPUS)
def test_the_real_nvidia_ml_py_answers_as_the_machine_is_described(name: str, folder: Path) -> None:
    machine = load(name)
    answers = probe(folder, machine)
    assert answers["before_init"] == "error 1"
    assert answers["driver"] == machine.software.driver
    assert answers["cuda"] == machine.software.cuda
    assert answers["texts"] == ["Success", "GPU requires reset", "Deprecated", "Unknown Error"]
    assert answers["past_the_last"] == "error 2"
    assert len(answers["gpus"]) == len(machine.gpus)
    for index, (gpu, read) in enumerate(zip(machine.gpus, answers["gpus"], strict=True)):
        assert (read["name"], read["bus"], read["minor"]) == (gpu.name, gpu.bus, index)
        assert read["uuid"] == gpu_uuid(name, index, "node-a")
        assert read["pci_id"] == gpu.pci_id[5:] + gpu.pci_id[:4]
        assert read["kind"] == expected_kind(gpu)
        assert read["types"] == expected_types(machine, gpu)
        assert read["cc"] == list(gpu.compute_capability)
        assert read["memory"]["total"] == read["memory_v2"]["total"] == gpu.memory_mib << 20
        assert read["memory"]["used"] == read["memory_v2"]["reserved"] == gpu.reserved_mib << 20
        assert read["memory_v9"] == "error 25"
        assert read["mig"] == ("error 3" if gpu.mig == "unsupported" else [int(gpu.mig == "enabled")] * 2)
        assert read["own_numa"] == ("error 3" if gpu.own_numa is None else gpu.own_numa)
        assert read["links"] == [expected_link(machine, index, number) for number in range(37)]
        assert read["fields"] == expected_fields(machine, index)
        near = [node for node in machine.host.numa if gpu.numa in (-1, node.id)]
        assert bits(read["nodes"]) == {node.id for node in near}
        assert bits(read["cpus"]) == cpu_numbers(",".join(node.cpus for node in near))
        assert read["processes"] == []
        assert read["not_exported"] == "error 13"
        assert (read["remapped"] == "error 3") == (refused(machine, "nvmlDeviceGetRemappedRows") or gpu.arch == "volta")


@pytest.mark.parametrize("name", WITH_GPUS)
def test_pairs_and_fabric_answer_as_described(name: str, folder: Path) -> None:
    machine = load(name)
    answers = probe(folder, machine)
    levels = {"INTERNAL": 0, "PIX": 10, "PXB": 20, "PHB": 30, "NODE": 40, "SYS": 50}
    pairs = [(a, b) for a in range(len(machine.gpus)) for b in range(len(machine.gpus)) if a != b]
    for (a, b), (level, over_nvlink, _) in zip(pairs, answers["pairs"], strict=True):
        assert level == levels[machine.level(a, b)]
        assert (over_nvlink == 0) == machine.topo_m[a][b].startswith("NV")
    for read in answers["gpus"]:
        if machine.fabric is None:
            assert (read["fabric"], read["fabric_wrong_version"]) == ("error 3", "error 3")
        else:
            cluster = "0" * 32 if machine.fabric.cluster == "zero" else machine.fabric.cluster.replace("-", "")
            assert read["fabric"] == [3, 0, cluster, machine.fabric.clique]
            assert read["fabric_wrong_version"] == "error 25"


MIG_GPU = 2
DGX = load("dgxa100-8x-a100-40g")
CUT = replace(
    DGX,
    gpus=(
        *DGX.gpus[:MIG_GPU],
        replace(
            DGX.gpus[MIG_GPU],
            mig="enabled",
            mig_devices=(MigDevice("1c.3g.20gb", 20096, 1, 0), MigDevice("1g.5gb+me", 4864, 7, 0, "MIG-GPU-x/7/0")),
        ),
        *DGX.gpus[MIG_GPU + 1 :],
    ),
)


def test_mig_devices_answer_as_described(folder: Path) -> None:
    gpus = probe(folder, CUT)["gpus"]
    gpu, other = gpus[MIG_GPU], gpus[0]
    assert (gpu["mig"], gpu["most_mig_devices"], gpu["is_mig"], gpu["instance"]) == ([1, 1], 7, 0, "error 2")
    assert gpu["mig_devices"][2:] == [*["error 6"] * 5, "error 2"]
    assert (other["most_mig_devices"], other["mig_devices"]) == (0, [*["error 6"] * 7, "error 2"])
    larger, smaller = gpu["mig_devices"][:2]
    uuid = mig_uuid(DGX.id, MIG_GPU, CUT.gpus[MIG_GPU].mig_devices[0], "node-a")
    assert larger == {
        "uuid": uuid,
        "by_uuid": uuid,
        "name": "NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb",
        "gi": 1,
        "ci": 0,
        "memory": {"total": 20096 << 20, "free": 20096 << 20, "used": 0},
        "memory_v2": {**larger["memory_v2"], "total": 20096 << 20, "free": 20096 << 20, "reserved": 0, "used": 0},
        "slices": [3, 1, 20096],
        "is_mig": 1,
        "parent": gpu["uuid"],
        "as_a_gpu": "error 2",
    }
    assert (smaller["uuid"], smaller["slices"]) == ("MIG-GPU-x/7/0", [1, 1, 4864])


def test_mig_devices_go_with_their_gpu(folder: Path) -> None:
    assert probe(folder, CUT, lost_gpu(MIG_GPU))["gpus"][MIG_GPU] == "error 15"


@pytest.mark.parametrize(
    ("mig", "devices", "problem"),
    [
        ("disabled", "[[1g.5gb, 4864, 7, 0]]", "MIG devices of a GPU whose mig is disabled"),
        ("enabled", "[[1g5gb, 4864, 7, 0]]", "expected a profile such as 1g.5gb"),
        ("enabled", "[[1g.5gb, 99999, 7, 0]]", "99999 MiB of a GPU with"),
        ("enabled", "[[1g.5gb, 4864, 7, 0], [1g.5gb, 4864, 7, 0]]", "the same compute instance"),
        ("enabled", "[[1g.5gb, 4864]]", "length"),
    ],
)
def test_mig_devices_that_cannot_be_are_refused(mig: str, devices: str, problem: str) -> None:
    text = (Path(str(simulation.__file__)).parent / "machines/dgxa100-8x-a100-40g.yaml").read_text()
    wrong = text.replace("mig: disabled", f"mig: {mig}\n  mig_devices: {devices}")
    with pytest.raises(MachineDescriptionError, match=problem):
        read_machine_description(wrong, "m.yaml")


def test_mig_instances_are_made_where_there_is_room_and_seen_until_they_are_destroyed(folder: Path) -> None:
    assert probe(folder, DGX, asking=MIG_INSTANCES_PROBE) == {
        "before": [],
        "profile": [3, 2, 20480],
        "overlapping": "error 23",
        "no such place": "error 23",
        "made": ["1g.5gb", "3g.20gb"],
        "placement": [4, 1],
        "of another GPU": "error 3",
        "after a new file": ["1g.5gb", "3g.20gb"],
        "in use": "error 19",
        "left": ["1g.5gb"],
    }


def test_a_lost_gpu_fails_alone(folder: Path) -> None:
    answers = probe(folder, load("hgxh100-8x-h100-80g"), lost_gpu(3))
    assert answers["gpus"][3] == "error 15"
    assert [isinstance(gpu, dict) for gpu in answers["gpus"]].count(True) == 7


def test_a_cleared_fault_is_over(folder: Path) -> None:
    assert "error 15" not in probe(folder, load("4x-gh200"), lost_gpu(1), Cleared(gpu=1))["gpus"]


def test_a_link_down_is_counted_nowhere_but_in_the_number_of_links(folder: Path) -> None:
    gpu = probe(folder, load("dgxa100-8x-a100-40g"), LinkState(gpu=2, link=0))["gpus"][2]
    assert gpu["links"][0] == [0, "error 3", 2]
    assert (gpu["fields"]["147"], gpu["fields"]["91"], gpu["fields"]["165"]) == (11, 12, 0)


def test_a_fabric_in_progress_ends_peer_access_over_switches(folder: Path) -> None:
    answers = probe(folder, load("hgxh100-8x-h100-80g"), FabricIs(state="IN_PROGRESS"))
    assert answers["gpus"][0]["fabric"][0] == 2
    assert {pair[1] for pair in answers["pairs"]} == {5}


EVENTS = """
import ctypes, os, sys, pynvml
from pathlib import Path
from simulation.machines import load
from simulation.nvml.machine_file import MachineEvent, write_machine_file
machine, path = load("4x-a100-pcie-80g-bridged"), Path(os.environ["TOPOGPU_FAKE_NVML_MACHINE"])
pynvml.nvmlLib = ctypes.CDLL(sys.argv[1])
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(1)
events = pynvml.nvmlEventSetCreate()
pynvml.nvmlDeviceRegisterEvents(gpu, 8, events)
write_machine_file(machine, path, "n", [MachineEvent(gpu=1, data=79)])
event = pynvml.nvmlEventSetWait_v2(events, 30_000)
print(event.eventType, event.eventData, pynvml.nvmlDeviceGetUUID(event.device) == pynvml.nvmlDeviceGetUUID(gpu))
try:
    pynvml.nvmlEventSetWait_v2(events, 20)
except pynvml.NVMLError as e:
    print(e.value)
"""


def test_an_xid_switched_on_in_a_running_process_is_told_once(folder: Path) -> None:
    write_machine_file(load("4x-a100-pcie-80g-bridged"), folder / "machine", "n")
    done = subprocess.run(
        [sys.executable, "-c", EVENTS, str(build_library())],
        env={**os.environ, MACHINE_FILE_VARIABLE: str(folder / "machine"), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.stdout.split(), done.stderr) == (["8", "79", "True", "10"], "")


def test_two_machines_of_a_kind_have_different_gpus() -> None:
    assert gpu_uuid("4x-gh200", 0, "a") != gpu_uuid("4x-gh200", 0, "b")


def test_a_machine_is_known_by_the_name_of_its_file() -> None:
    assert [load(name).id for name in names()] == list(names())
    assert load("cpu-only").software.library == "missing"


def test_an_unknown_machine_and_a_broken_file_say_where(folder: Path) -> None:
    with pytest.raises(MachineDescriptionError, match=r"dgx-9000: no such file; Simulated machines are 1x-t4-vm"):
        load("dgx-9000")
    with pytest.raises(MachineDescriptionError, match=r"no such file; did you mean hgxh100-8x-h100-80g\? Simulated"):
        load("H100")
    with pytest.raises(MachineDescriptionError, match=r": cannot be read: Is a directory$"):
        load(folder)
    (folder / "m.yaml").write_text("schema: gpu-machine/1\nid: x\ntitle: [", encoding="utf-8")
    with pytest.raises(MachineDescriptionError, match=r"m\.yaml: line 3"):
        load(folder / "m.yaml")


def test_sysfs_holds_the_numa_nodes(folder: Path) -> None:
    write_sysfs(load("dgxa100-8x-a100-40g"), folder)
    assert (folder / "bus/pci/devices/0000:47:00.0/numa_node").read_text() == "1\n"
    assert (folder / "devices/system/node/node7/cpulist").read_text() == "112-127,240-255\n"
