"""Tables at the widths of people's terminals, in a pipe, and without colours or Unicode."""

import io
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType
from rich.text import Text

from program.tables import Column, FittingTable, Matrix, lay_out, parts

COLUMNS = (
    Column(title="Pod"),
    Column(title="Why", wraps=True),
    Column(title="PCI address", rank=1),
    Column(title="UUID", rank=2),
    Column(title="Verdict"),
)
UUID = "GPU-59ac43c9-a5c5-5aed-8427-9ade2cd0f0da"
ROWS = (
    ("ml/train-0", "every GPU of this node is shared by other containers already", "00000000:0F:00.0", UUID, "differs"),
    ("ml/train-1", "fits", "00000000:47:00.0", UUID, Text("agrees", "green")),
)


def shown(content: RenderableType, width: int) -> list[str]:
    into = io.StringIO()
    Console(file=into, width=width, highlight=False).print(content)
    return [line.rstrip() for line in into.getvalue().splitlines()]


def test_a_wide_terminal_shows_every_column_on_one_line() -> None:
    assert shown(FittingTable(columns=COLUMNS, rows=ROWS), 200)[1:] == [
        f"ml/train-0  {ROWS[0][1]}  00000000:0F:00.0  {UUID}  differs",
        f"ml/train-1  {'fits':60}  00000000:47:00.0  {UUID}  agrees",
    ]


def test_titles_and_words_keep_their_style() -> None:
    into = io.StringIO()
    table = FittingTable(columns=COLUMNS[3:], rows=[("b", Text("agrees", "green"))])
    Console(file=into, width=80, force_terminal=True, color_system="standard").print(table)
    assert "\x1b[1mVerdict\x1b[0m" in into.getvalue()
    assert "\x1b[32magrees\x1b[0m" in into.getvalue()


def test_what_matters_least_is_left_out_and_named() -> None:
    table = FittingTable(columns=COLUMNS, rows=ROWS, more="-o wide shows all.")
    assert shown(table, 90)[-1] == "Left out for lack of room: UUID. -o wide shows all."
    assert shown(table, 60) == [
        f"Pod         {'Why':39}  Verdict",
        f"ml/train-0  {'every GPU of this node is shared by':39}  differs",
        "            other containers already",
        f"ml/train-1  {'fits':39}  agrees",
        "Left out for lack of room: PCI address, UUID. -o wide shows",
        "all.",
    ]


def test_at_last_each_row_is_a_block_with_every_column() -> None:
    lines = shown(FittingTable(columns=COLUMNS, rows=ROWS), 30)
    assert lines[0] == "Pod ml/train-0"
    assert [line.split()[-1] for line in lines if "Verdict" in line] == ["differs", "agrees"]
    assert "".join(line.strip() for line in lines).count("9ade2cd0f0da") == 2


def test_what_is_wanted_whole_leaves_nothing_out() -> None:
    lines = shown(FittingTable(columns=COLUMNS, rows=ROWS, everything=True), 80)
    assert sum(UUID in line for line in lines) == 2
    assert not any("Left out" in line for line in lines)


def test_a_matrix_continues_below_with_its_labels() -> None:
    labels = [f"GPU{number}" for number in range(8)]
    columns = [Column(title=title) for title in ("", *labels, "Model")]
    rows = [(label, *["NV12"] * 8, "NVIDIA A100-SXM4-40GB") for label in labels]
    lines = shown(Matrix(columns=columns, rows=rows, title="Links"), 60)
    assert lines[1].split() == labels
    assert lines[2].split() == ["GPU0", *["NV12"] * 8]
    assert lines[11].split() == ["Model"]
    assert lines[19] == "GPU7  NVIDIA A100-SXM4-40GB"


widths = st.lists(st.integers(1, 60), min_size=1, max_size=8)


@given(widths=widths, ranks=st.lists(st.integers(0, 3), min_size=8, max_size=8), room=st.integers(1, 200))
def test_what_is_shown_side_by_side_fits(widths: list[int], ranks: list[int], room: int) -> None:
    columns = [Column(title="", rank=rank, wraps=rank == 3) for rank, _ in zip(ranks, widths, strict=False)]
    layout = lay_out(columns, widths, room)
    kept = {place for place, column in enumerate(columns) if column.rank == 0}
    assert kept <= set(layout.shown)
    if layout.blocks:
        assert layout.shown == tuple(range(len(columns)))
    else:
        assert sum(layout.widths) + 2 * (len(layout.widths) - 1) <= room


@given(widths=widths, room=st.integers(1, 200))
def test_a_matrix_shows_each_column_once(widths: list[int], room: int) -> None:
    runs = parts(widths, room)
    assert [place for run in runs for place in run] == list(range(1, len(widths)))
    for run in runs:
        assert len(run) <= 1 or widths[0] + sum(widths[place] + 2 for place in run) <= room


PRINTED = """
from rich.text import Text
import click
from program.commands import Commands
from program.output import print_text
from program.tables import Column, FittingTable
@click.group(cls=Commands, invoke_without_command=True)
def main():
    columns = (Column(title="Name"), Column(title="Free", rank=1), Column(title="Agrees"))
    print_text(FittingTable(columns=columns, rows=[("\\x1b[31mnode·é" + "x" * 100, "█░░", Text("✓ → ok", "green"))]))
main()
"""


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"PYTHONIOENCODING": "utf-8"}, "[31mnode·é" + "x" * 100 + "  █░░   ✓ → ok"),
        ({"PYTHONIOENCODING": "ascii"}, "[31mnode.\\xe9" + "x" * 100 + "  #..   + > ok"),
        ({"PYTHONIOENCODING": "utf-8", "NO_COLOR": "1", "COLUMNS": "40"}, "[31mnode·é" + "x" * 100 + "  █░░   ✓ → ok"),
    ],
    ids=["pipe", "ASCII", "NO_COLOR"],
)
def test_a_pipe_gets_whole_plain_lines(environment: dict[str, str], expected: str) -> None:
    printed = subprocess.run(
        [sys.executable, "-c", PRINTED], env={**os.environ, **environment}, capture_output=True, check=True
    )
    encoding = environment["PYTHONIOENCODING"]
    assert printed.stderr == b""
    assert printed.stdout.decode(encoding).splitlines()[1] == expected
