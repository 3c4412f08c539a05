import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.machines.nvidia_smi import SmiError, parse_topology

RECORDED = Path(__file__).parents[2] / "data" / "topo"
CASES = {case["name"]: case for case in map(json.loads, (RECORDED / "expected.jsonl").read_text().splitlines())}
READABLE = [name for name, case in CASES.items() if case["expect"] == "ok"]
REFUSED = [name for name, case in CASES.items() if case["expect"] != "ok"]

TWO_GPUS = (
    "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tNV12\t0-3\t0\t\tN/A\n"
    "GPU1\tNV12\t X \t4-7\t1\t\tN/A\n"
)


def recorded_text(name: str) -> str:
    return (RECORDED / f"{name}.txt").read_bytes().decode(errors="replace")


def rows(matrix: tuple[tuple[str, ...], ...]) -> list[list[str]]:
    return [list(row) for row in matrix]


def listed(column: tuple[str | None, ...] | None) -> list[str | None] | None:
    return None if column is None else list(column)


@pytest.mark.parametrize("name", READABLE)
def test_a_published_output_reads_as_recorded(name: str) -> None:
    case: dict[str, Any] = CASES[name]
    smi = parse_topology(recorded_text(name))
    assert len(smi.gpus) == case["gpus"]
    assert rows(smi.links) == case["links"]
    assert list(smi.nics) == (case["nics"] or [])
    assert listed(smi.cpu_affinity) == case["cpu_affinity"]
    assert listed(smi.numa_affinity) == case["numa_affinity"]
    assert listed(smi.gpu_numa_id) == case["gpu_numa_id"]
    assert (not smi.disagreements()) == case["symmetric"]
    if smi.nics:
        assert rows(smi.nic_links) == case["gpu_nic_links"]


@pytest.mark.parametrize("name", REFUSED)
def test_what_stops_early_or_holds_no_matrix_is_refused_with_its_place(name: str) -> None:
    text = recorded_text(name)
    with pytest.raises(SmiError, match=r"^line \d+, column \d+: ") as refusal:
        parse_topology(text)
    assert 1 <= refusal.value.line <= text.count("\n") + 1
    assert refusal.value.column >= 1


def test_every_recorded_kind_is_here() -> None:
    assert (len(READABLE), len(REFUSED)) == (136, 7)


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ("", (1, 1), "empty"),
        ("nonsense\n", (1, 1), "no link matrix"),
        (TWO_GPUS.replace("GPU1\tNV12", "GPU1\tnv12"), (3, 6), "expected a link"),
        (TWO_GPUS.replace("GPU1\tNV12\t X ", "GPU1\t X \tNV12"), (3, 7), "X belongs"),
        (TWO_GPUS.replace("GPU1\tNV12", "GPU7\tNV12"), (3, 1), "expected row GPU1"),
        (TWO_GPUS.replace("\t4-7\t", "\t4~7\t"), (3, 16), "expected numbers"),
        ("".join(TWO_GPUS.splitlines(keepends=True)[:2]), (2, 1), "ends before row GPU1"),
        (TWO_GPUS[:-6], (3, 20), "ends inside the last row"),
        (TWO_GPUS.replace("CPU Affinity", "CPU Affin@ty"), (1, 12), "not a column"),
    ],
)
def test_a_damaged_text_is_refused_where_the_damage_is(text: str, place: tuple[int, int], problem: str) -> None:
    with pytest.raises(SmiError, match=problem) as refusal:
        parse_topology(text)
    assert (refusal.value.line, refusal.value.column) == place


@pytest.mark.parametrize("name", ["104-8gpu-nv18-10n", "073-gh200x4"])
def test_no_text_cut_before_the_last_row_is_read(name: str) -> None:
    (full,) = [recorded_text(case) for case in CASES if case.startswith(name)]
    rows_end = full.index("Legend")
    last_row = full.rstrip()[:rows_end].rstrip().rindex("\n")
    for cut in range(0, last_row, 37):
        with pytest.raises(SmiError):
            parse_topology(full[:cut])


HEADER, FIRST, SECOND = TWO_GPUS.splitlines()
LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP
interconnect between NUMA nodes (e.g., QPI/UPI)
  NV#  = Connection traversing a bonded set of # NVLinks
"""


def each(prefix: str, text: str = TWO_GPUS, suffix: str = "") -> str:
    return "".join(f"{prefix}{line}{suffix}\n" for line in text.splitlines())


def cells(line: str) -> str:
    return f"| {' | '.join(cell or ' ' for cell in line.split(chr(9)))} |"


PASTED = {
    "bullets": each("- "),
    "other bullets": each("* "),
    "numbers": f"1. {HEADER}\n2. {FIRST}\n3. {SECOND}\n",
    "a bullet before the header": f"- {TWO_GPUS}",
    "a fence in a bullet": f"- ```\n{each('  ')}  ```\n",
    "a fence with a prompt": f"```console\n$ nvidia-smi topo -m\n{TWO_GPUS}{LEGEND}```\n",
    "a fence on the header's line": f"```{TWO_GPUS}```",
    "another fence": f"~~~\n{TWO_GPUS}~~~\n",
    "two fences": f"```\n{HEADER}\n```\n```\n{FIRST}\n{SECOND}\n```\n",
    "lines as code": each("`", suffix="`"),
    "quoted bullets": each("> - "),
    "HTML": f"<details><summary>topo</summary>\n<pre>{TWO_GPUS}</pre></details>",
    "the header twice": f"{HEADER}\n{TWO_GPUS}",
    "the header twice, with a blank line": f"{HEADER}\n\n{TWO_GPUS}",
    "the header before each row": f"{HEADER}\n{FIRST}\n{HEADER}\n{SECOND}\n",
    "the header twice, in bullets": each("- ", f"{HEADER}\n{TWO_GPUS}"),
    "the whole twice": 2 * f"{TWO_GPUS}{LEGEND}",
    "a wrapped legend": f"{TWO_GPUS}{LEGEND}",
    "a wrapped legend first": f"{LEGEND}{TWO_GPUS}",
    "a wrapped legend in bullets": each("- ", f"{TWO_GPUS}{LEGEND}"),
    "a header wrapped between columns": TWO_GPUS.replace("Affinity\tNUMA", "Affinity\n NUMA"),
    "colours": TWO_GPUS.replace("GPU1", "\x1b[4mGPU1\x1b[0m", 1),
    "colours without their escape byte": TWO_GPUS.replace("GPU1", "[4mGPU1[0m", 1),
    "colours as caret notation": TWO_GPUS.replace("GPU1", "^[[1;4mGPU1^[[0m", 1),
    "a table": "\n".join([cells(HEADER), "|---|:--:|---|---|---|---|", cells(FIRST), cells(SECOND)]),
}


@pytest.mark.parametrize("text", PASTED.values(), ids=PASTED)
def test_what_people_paste_reads_as_what_the_tool_printed(text: str) -> None:
    assert parse_topology(text) == parse_topology(TWO_GPUS)


@pytest.mark.parametrize("name", READABLE)
def test_a_published_output_reads_the_same_in_bullets_and_fences(name: str) -> None:
    text = recorded_text(name)
    assert parse_topology(f"```\n{text}\n```\n") == parse_topology(text)


def broken(text: str, width: int) -> str:
    """As a terminal shows it: tabs are blanks, and lines go on below."""
    lines = [line.expandtabs() for line in text.splitlines()]
    return "".join(f"{line[at : at + width]}\n" for line in lines for at in range(0, max(len(line), 1), width))


@pytest.mark.parametrize("strip", [False, True], ids=["as shown", "blanks at the end lost"])
def test_lines_that_a_terminal_broke_read_as_the_whole_or_are_refused_with_what_to_do(strip: bool) -> None:
    refused = {}
    for name in READABLE:
        text = broken(recorded_text(name), 80)
        try:
            found = parse_topology("\n".join(map(str.rstrip, text.split("\n"))) if strip else text)
        except SmiError as error:
            refused[name[:3]] = error.problem.partition("; ")[2]
        else:
            assert found == parse_topology(broken(recorded_text(name), 10_000))
    # JSON strings, a log, and one that was broken already.
    assert refused == dict.fromkeys(
        ("082", "128", "135"), "lines look wrapped: write them with `nvidia-smi topo -m > FILE`"
    )


def test_cells_that_ran_together_stay_unknown_when_blanks_follow_them() -> None:
    text = recorded_text("126-h100-8gpu-cpu-numa-glued")
    assert parse_topology("".join(f"{line} \t\n" for line in text.splitlines())) == parse_topology(text)


def test_an_unknown_token_is_kept() -> None:
    smi = parse_topology(TWO_GPUS.replace("NV12", "C2C"))
    assert smi.links == (("X", "C2C"), ("C2C", "X"))


@given(st.text(alphabet=st.sampled_from('GPU01X NVSYS\t\n\r\x1b[4m"\\>N/A-,'), max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(SmiError):
        smi = parse_topology(text)
        assert len(smi.links) == len(smi.gpus)
