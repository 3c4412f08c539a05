"""The table of faults in `tests/faults/README.md`: `python -m tests.faults.document FOLDER`.

A cell that has not been run since keeps the time that the page has.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path

from proto.annotations.node_allocation import AllocationMode
from tests.faults.matrix import Cell, cells
from tests.faults.steps import Step
from tests.settings_manual import filled

PAGE = Path(__file__).with_name("README.md")
_UNKNOWN = "?"


def document(times: Mapping[tuple[str, str], str], page: str) -> str:
    """Returns the page with its table. `times` are by fault and step."""
    lines = [f"| fault | {' | '.join(Step)} |", f"|---|{'---|' * len(Step)}"]
    for name, row in groupby(cells(), lambda cell: cell.fault.name):
        lines.append(f"| {name} | {' | '.join(_shown(cell, times) for cell in row)} |")
    return filled(page, {"faults": "\n".join([*lines, ""])}, "make docs-reliability")


def written_times(page: str) -> dict[tuple[str, str], str]:
    """The times of a page, by fault and step."""
    generated = page.partition("<!-- faults: ")[2].partition("<!-- end of faults -->")[0].splitlines()
    rows = [[word.strip() for word in line.split("|")[1:-1]] for line in generated if line.startswith("| ")]
    return {(fault, step): time for fault, *times in rows[1:] for step, time in zip(Step, times, strict=True)}


def _shown(cell: Cell, times: Mapping[tuple[str, str], str]) -> str:
    mark = " i" if cell.allocation is AllocationMode.IMMEDIATE else ""
    return cell.reason or times.get((cell.fault.name, cell.step), _UNKNOWN).removesuffix(mark) + mark


def _measured(folder: Path) -> Iterator[tuple[tuple[str, str], str]]:
    for file in folder.glob("*.json"):
        found = json.loads(file.read_text())
        yield (found["fault"], found["step"]), f"{found['seconds']:.1f}"


if __name__ == "__main__":
    before = PAGE.read_text()
    PAGE.write_text(document(written_times(before) | dict(_measured(Path(sys.argv[1]))), before))
