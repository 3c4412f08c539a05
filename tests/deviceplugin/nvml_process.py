"""The real nvidia-ml-py over the fake library, in a process of its own: NVML is one machine per process."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulation.machines import load
from simulation.machines.description import MachineDescription
from simulation.nvml.build import build_library
from simulation.nvml.machine_file import MACHINE_FILE_VARIABLE, Fault, write_machine_file, write_sysfs

READ = """
import collections, dataclasses, functools, json, os, sys
from pathlib import Path
import pynvml
from deviceplugin.nvml.library import NvmlUnavailable
from deviceplugin.nvml.reader import Nvml
from deviceplugin.machine.topology import asymmetric_pairs, build_topology, pair_scores
library, machine_file, sysfs, always_new, *states = sys.argv[1:]
asked = collections.Counter()

def counted(function):
    @functools.wraps(function)
    def call(*arguments):
        fields = [f"field:{n}" for n, _ in arguments[1]] if function.__name__ == "nvmlDeviceGetFieldValues" else []
        asked.update(fields or [function.__name__])
        return function(*arguments)
    return call

for name in dir(pynvml):
    if name.startswith(("nvmlDevice", "nvmlSystem")) and callable(getattr(pynvml, name)):
        setattr(pynvml, name, counted(getattr(pynvml, name)))

nvml = Nvml(library, sysfs_root=Path(sysfs))
for state in states:
    os.replace(state, machine_file)
    asked.clear()
    if always_new == "True":
        nvml.close()
        nvml = Nvml(library, sysfs_root=Path(sysfs))
    if state.endswith("shut-down"):
        pynvml.nvmlShutdown()
    try:
        read = nvml.read_machine()
    except NvmlUnavailable as e:
        print(json.dumps({"unavailable": str(e), "restart": e.needs_restart}))
        continue
    topology = build_topology(read)
    print(json.dumps({
        "gpus": [dataclasses.asdict(gpu) for gpu in read.gpus],
        "pairs": sorted(read.pairs),
        "problems": read.problems,
        "doubtful": read.is_doubtful,
        "missing": [[gpu.name, gpu.problem] for gpu in read.missing],
        "driver": read.driver,
        "links": topology.links,
        "scores": pair_scores(topology),
        "asymmetric": [pair.sentence for pair in asymmetric_pairs(read)],
        "handles": {
            uuid: nvml.calls().ask("nvmlDeviceGetIndex", handle) for uuid, handle in nvml.handles().items()
        },
        "asked": asked,
    }))
"""

HGX = load("hgxh100-8x-h100-80g")

State = str | tuple[MachineDescription, Sequence[Fault]]
"""A machine and its faults, or the text of a machine file."""


def readings(
    folder: Path,
    *states: State,
    library: str = "",
    always_new: bool = False,
    shut_down_before: int | None = None,
) -> list[dict[str, Any]]:
    """One process reads the machine once in each state.

    `always_new` forgets in between what was known; somebody shuts NVML down before the state `shut_down_before`.
    """
    files: list[Path] = []
    for number, state in enumerate(states):
        files.append(folder / f"state-{number}{'-shut-down' if number == shut_down_before else ''}")
        if isinstance(state, str):
            files[-1].write_text(state)
        else:
            write_sysfs(state[0], folder / "sys")
            write_machine_file(state[0], files[-1], "", state[1])
    current = folder / "machine"
    words = str(folder / "sys"), str(always_new), *map(str, files)
    return lines_of(READ, current, *words, library=library)


def lines_of(program: str, current: Path, *words: str, library: str = "") -> list[Any]:
    """The JSON lines that the program prints in a process of its own, with a library that no other test has opened.

    It gets the library, the machine's file `current`, and the words.
    """
    done = subprocess.run(
        [sys.executable, "-c", program, library or str(build_library()), str(current), *words],
        env={**os.environ, MACHINE_FILE_VARIABLE: str(current)},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def reading(folder: Path, machine: MachineDescription, *faults: Fault) -> dict[str, Any]:
    (only,) = readings(folder, (machine, faults))
    return only


def facts(read: dict[str, Any]) -> dict[str, Any]:
    """What was read, without how."""
    return {key: value for key, value in read.items() if key != "asked"}


def printed(machine: MachineDescription) -> list[list[str]]:
    return [list(row) for row in machine.topo_m]


def over_pcie(machine: MachineDescription) -> list[list[str]]:
    places = range(len(machine.gpus))
    return [["X" if a == b else machine.level(a, b) for b in places] for a in places]
