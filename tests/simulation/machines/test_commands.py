import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import simulation
from simulation.cli import main

TOPO = Path(__file__).parents[2] / "data" / "topo"
MACHINES = Path(str(simulation.__file__)).parent / "machines"
KEYS = ["gpus", "links", "scores", "bandwidth_gbps", "nics", "cpu_affinity", "numa_affinity", "gpu_numa_id"]


def run(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(main, list(arguments), input=text)


def test_a_described_machine_as_json() -> None:
    answer = json.loads(run("topo", "--machine", str(MACHINES / "4x-gh200.yaml"), "--output", "json").stdout)
    assert list(answer) == KEYS
    assert [(gpu["index"], gpu["name"]) for gpu in answer["gpus"]] == [(i, "NVIDIA GH200 120GB") for i in range(4)]
    assert answer["links"][0] == ["X", "NV6", "NV6", "NV6"]
    assert answer["scores"][0] == [0, 610, 610, 610]
    assert answer["bandwidth_gbps"][0] == [0.0, 123.6, 123.6, 123.6]
    assert answer["cpu_affinity"] == ["0-71", "72-143", "144-215", "216-287"]
    assert answer["gpu_numa_id"] == ["4", "12", "20", "28"]


def test_a_printed_matrix_as_json() -> None:
    (path,) = TOPO.glob("126-*.txt")
    answer = json.loads(run("topo", "--smi", str(path), "--output", "json").stdout)
    assert list(answer) == KEYS
    assert answer["cpu_affinity"][3:5] == ["0-55,112-167", None]
    assert answer["bandwidth_gbps"][0][:2] == [0.0, None]
    assert len(answer["nics"]) == 9


def test_a_printed_matrix_comes_from_standard_input_too() -> None:
    (path,) = TOPO.glob("017-*.txt")
    result = run("topo", "--smi", "-", text=path.read_text())
    assert result.exit_code == 0
    assert "NV2" in result.stdout


def test_people_see_links_scores_and_speeds() -> None:
    shown = run("topo", "--machine", str(MACHINES / "dgx2-16x-v100-32g.yaml")).stdout
    assert "GPU15" in shown
    assert "NV6" in shown
    assert "650" in shown
    assert "120" in shown


def test_a_machine_without_gpus_says_so() -> None:
    result = run("topo", "--machine", str(MACHINES / "cpu-only.yaml"))
    assert (result.exit_code, result.stdout.strip()) == (0, "No NVIDIA GPU on this machine.")


@pytest.mark.parametrize(
    ("arguments", "text", "complaint"),
    [
        (("--smi", "/nonexistent/topo.txt"), None, "cannot read /nonexistent/topo.txt: No such file or directory"),
        (("--smi", "/"), None, "cannot read /: Is a directory"),
        (("--smi", "-"), "", "line 1, column 1"),
        (("--smi", "-"), "a\0b", "zero byte"),
        (("--smi", "-"), "\tGPU0\tGPU1\nGPU0\t X \tSYS\n", "line 2, column 1: the text ends before row GPU1"),
        (("--machine", "-"), "gpus: [", "line 1"),
        (("--machine", "/nonexistent/machine.yaml"), None, "/nonexistent/machine.yaml: no such file"),
    ],
)
def test_bad_input_gets_one_sentence(arguments: tuple[str, ...], text: str | None, complaint: str) -> None:
    result = run("topo", *arguments, text=text)
    assert result.exit_code == 1
    assert complaint in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_devices_lists_the_gpus() -> None:
    machine = str(MACHINES / "4x-a100-pcie-80g-bridged.yaml")
    answer = json.loads(run("devices", "--machine", machine, "--output", "json").stdout)
    assert [gpu["memory_mib"] for gpu in answer["gpus"]] == [81920] * 4
    assert "81 920 MiB" in run("devices", "--machine", machine).stdout


def sliced(*devices: str) -> str:
    """A DGX A100 whose GPU 1 has MIG on and these MIG devices."""
    gpu = '{bus: "00000000:0F:00.0", numa: 3'
    text = (MACHINES / "dgxa100-8x-a100-40g.yaml").read_text()
    return text.replace(gpu, f"{gpu}, mig: enabled, mig_devices: [{', '.join(devices)}]").partition("topo_m:")[0]


TWO = sliced("[3g.20gb, 20096, 1, 0, MIG-one]", "[1g.5gb, 4864, 7, 0, MIG-two]")


@pytest.mark.parametrize("command", ["devices", "topo"])
def test_programs_read_the_mig_devices_of_each_gpu(command: str) -> None:
    answer = json.loads(run(command, "--machine", "-", "--output", "json", text=TWO).stdout)
    assert [gpu["mig_devices"] for gpu in answer["gpus"]][:3] == [
        None,
        [
            {"uuid": "MIG-one", "profile": "3g.20gb", "memory_mib": 20096},
            {"uuid": "MIG-two", "profile": "1g.5gb", "memory_mib": 4864},
        ],
        None,
    ]


def test_people_see_mig_devices_below_their_gpu() -> None:
    lines = run("devices", "--machine", "-", "-o", "wide", text=TWO).stdout.splitlines()
    first = next(number for number, line in enumerate(lines) if "MIG-one" in line)
    assert lines[first - 1].startswith("1 ")
    assert [line.split() for line in lines[first : first + 2]] == [
        ["MIG", "3g.20gb", "20", "096", "MiB", "MIG-one"],
        ["MIG", "1g.5gb", "4", "864", "MiB", "MIG-two"],
    ]


def test_people_see_beside_the_links_how_a_gpu_is_cut() -> None:
    lines = run("topo", "--machine", "-", text=TWO).stdout.splitlines()
    (line,) = (line for line in lines if line.startswith("GPU1 ") and "NVIDIA" in line)
    assert line.rstrip().endswith("NVIDIA A100-SXM4-40GB, MIG 3g.20gb, MIG 1g.5gb")


def test_a_gpu_with_mig_on_and_no_mig_device_says_so() -> None:
    gpus = json.loads(run("devices", "--machine", "-", "--output", "json", text=sliced()).stdout)["gpus"]
    assert [gpu["mig_devices"] for gpu in gpus][:2] == [None, []]
    assert "MIG is on, without a MIG device" in run("devices", "--machine", "-", text=sliced()).stdout


def test_a_simulated_machine_is_known_by_its_name() -> None:
    by_name = run("topo", "--machine", "4x-gh200", "--output", "json")
    by_file = run("topo", "--machine", str(MACHINES / "4x-gh200.yaml"), "--output", "json")
    assert (by_name.exit_code, by_name.stdout) == (0, by_file.stdout)
    assert run("topo", "--machine", "4x-gh", "--output", "json").stdout == by_file.stdout


@pytest.mark.parametrize("name", ["dgx1v-8x-v100-23g", "../machines/4x-gh200"])
def test_an_unknown_machine_is_one_sentence(name: str) -> None:
    result = run("topo", "--machine", name)
    assert result.exit_code == 1
    assert ("did you mean dgx1v-8x-v100-32g? " in result.stderr) is ("/" not in name)
    assert "Simulated machines are 1x-t4-vm" in result.stderr


def on_a_terminal(width: int, *arguments: str) -> list[str]:
    """Lines of a terminal of this width, without colours."""
    environment = {"COLUMNS": str(width), "FORCE_COLOR": "1", "NO_COLOR": "1", "TERM": "xterm"}
    shown = CliRunner().invoke(main, list(arguments), env=environment)
    assert shown.exit_code == 0, shown.output
    return [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in shown.stdout.splitlines()]


@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("machine", ["dgx1v-8x-v100-32g", "dgx2-16x-v100-32g"])
def test_every_link_and_its_row_label_is_there_at_every_width(machine: str, width: int) -> None:
    lines = on_a_terminal(width, "topo", "--machine", machine)
    answer = json.loads(run("topo", "--machine", machine, "--output", "json").stdout)
    matrix = lines[: lines.index("Score")]
    for number, row in enumerate(answer["links"]):
        cells = [cell for line in matrix if line.startswith(f"GPU{number} ") for cell in line.split()[1:]]
        assert [cell for cell in cells if cell in {"X", "SYS", *row}] == row
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_gpus_keep_index_model_and_health_at_every_width(width: int) -> None:
    lines = on_a_terminal(width, "devices", "--machine", "dgx1v-8x-v100-32g")
    rows = [line.split() for line in lines[2:10]]
    assert [(row[0], row[2], row[-1]) for row in rows] == [(str(n), "V100-SXM2-32GB", "healthy") for n in range(8)]
    assert ("Left out for lack of room: PCI address. --output json shows all." in " ".join(lines)) is (width == 60)
    whole = "\n".join(on_a_terminal(width, "devices", "--machine", "dgx1v-8x-v100-32g", "-o", "wide"))
    assert whole.count("GPU-") == 8
