"""A process of its own over the simulated driver: each test begins with a library that no other has opened."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from simulation.nvml.build import build_library
from simulation.nvml.machine_file import MACHINE_FILE_VARIABLE


def lines_of(program: str, current: Path, *words: str) -> list[Any]:
    """The JSON lines that the program prints. It gets the library, the machine's file `current`, and the words."""
    done = subprocess.run(
        [sys.executable, "-c", program, str(build_library()), str(current), *words],
        env={**os.environ, MACHINE_FILE_VARIABLE: str(current)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
