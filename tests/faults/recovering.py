"""What the tests of the matrix have in common."""

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path

import pytest

from tests.faults.driver import undergo
from tests.faults.matrix import Cell, cells
from tests.faults.world import Need

RESULTS = "FAULTS_RESULTS"
"""Names the folder to which the cells' times are written, for the document."""


def params(group: str) -> Sequence[object]:
    """The cells of one group of faults that are run; all but a few by `make test-faults` alone."""
    return [
        pytest.param(cell, id=f"{cell.fault.name}, {cell.step}", marks=() if cell.always else pytest.mark.faults)
        for cell in cells()
        if cell.group == group and not cell.reason
    ]


async def recover(cell: Cell) -> None:
    """Everything is as it should be once the fault is over."""
    if Need.DISK in cell.fault.needs and not _can_mount():
        pytest.skip("only root may mount the small disk")
    outcome = await undergo(cell.fault, cell.step, cell.allocation)
    folder = os.environ.get(RESULTS)
    if folder:
        result = {"fault": cell.fault.name, "step": cell.step, **asdict(outcome)}
        Path(folder, f"{cell.fault.name}, {cell.step}.json").write_text(json.dumps(result))


@cache
def _can_mount() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=False, capture_output=True)
        if mounted.returncode == 0:
            subprocess.run(["umount", folder], check=True)
    return mounted.returncode == 0
