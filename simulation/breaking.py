"""Faults by the names that people give them, in the text of a machine that the fake NVML reads. Pure.

The text is that of simulation.nvml.machine_file; a fault is a line of it, and goes with the line.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from simulation.nvml.machine_file import (
    DOUBLE_BIT_ECC,
    CallHangs,
    FabricIs,
    Fault,
    LinkState,
    MachineEvent,
    RecoveryActionIs,
    RowsRemapped,
    UncorrectedErrors,
    fault_line,
    lost_gpu,
)
from simulation.words import FAULTS

_XID = re.compile(r"xid(\d{1,3})")
_OFF_THE_BUS = 79
_ECC_XIDS = {48, 63, 64, 92, 94, 95}
"""Xids about errors that only memory with ECC finds: NVIDIA's Xid catalogue."""

_COMPUTE_WORD, _ECC_WORD = 6, 16
"""Places in a line of machine_file: the major compute capability, and whether the GPU has ECC."""
_AMPERE = 8


class CannotBreak(Exception):
    """The machine has no such GPU, or not what would break; one sentence."""


@dataclass(frozen=True, slots=True)
class _BrokenGpu:
    index: int
    links: int
    has_fabric: bool
    has_ecc: bool
    remaps_rows: bool
    wants_resets: bool


def _link_down(gpu: _BrokenGpu) -> Sequence[Fault]:
    return [LinkState(gpu=gpu.index, link=0)]


def _links_down(gpu: _BrokenGpu) -> Sequence[Fault]:
    return [LinkState(gpu=gpu.index, link=link) for link in range(gpu.links)]


def _memory(gpu: _BrokenGpu) -> Sequence[Fault]:
    return [UncorrectedErrors(gpu=gpu.index, count=1), MachineEvent(gpu=gpu.index, type=DOUBLE_BIT_ECC, data=0)]


_NAMED: Mapping[str, Callable[[_BrokenGpu], Sequence[Fault]]] = {
    "lost": lambda gpu: [lost_gpu(gpu.index)],
    "hang": lambda gpu: [CallHangs(gpu=gpu.index, call="*")],
    "link-down": _link_down,
    "links-down": _links_down,
    "ecc": _memory,
    "row-remap": lambda gpu: [RowsRemapped(gpu=gpu.index, failed=True)],
    "reset": lambda gpu: [RecoveryActionIs(gpu=gpu.index, action=1)],
    "fabric": lambda gpu: [FabricIs(gpu=gpu.index, state="IN_PROGRESS")],
}
"""The faults by the names of FAULTS, but for xidN."""


def broken(text: str, gpu: int, names: Iterable[str]) -> str:
    """The machine with these faults on one GPU beside those it has. Raises CannotBreak."""
    found = _find(text, gpu)
    lines = text.splitlines()
    end = lines.index("end")
    fresh = [line for name in names for line in map(fault_line, _faults(name, found))]
    return _joined([*lines[:end], *(line for line in dict.fromkeys(fresh) if line not in lines), *lines[end:]])


def mended(text: str, gpu: int | None) -> str:
    """Returns the machine without the faults of one GPU, or of all. Raises CannotBreak."""
    if gpu is not None:
        _find(text, gpu)
    return _joined(line for line in text.splitlines() if not _is_fault(line, gpu))


def _faults(name: str, gpu: _BrokenGpu) -> Sequence[Fault]:
    xid = _XID.fullmatch(name)
    if xid is not None:
        event = MachineEvent(gpu=gpu.index, data=int(xid[1]))
        if event.data in _ECC_XIDS and not gpu.has_ecc:
            raise CannotBreak(f"GPU {gpu.index} has no ECC memory, so its driver never reports Xid {event.data}")
        return [event, lost_gpu(gpu.index)] if event.data == _OFF_THE_BUS else [event]
    if name not in _NAMED:
        raise CannotBreak(f"there is no fault {name!r}; known are {', '.join(FAULTS)}")
    if name.startswith("link") and not gpu.links:
        raise CannotBreak(f"GPU {gpu.index} has no NVLink")
    missing = {
        "fabric": ("" if gpu.has_fabric else "is in no NVSwitch fabric"),
        "ecc": ("" if gpu.has_ecc else "has no ECC memory"),
        "row-remap": ("" if gpu.remaps_rows else "remaps no memory rows: only GPUs with ECC from Ampere on do"),
        "reset": ("" if gpu.wants_resets else "has a driver that never asks for a reset"),
    }
    if why := missing.get(name):
        raise CannotBreak(f"GPU {gpu.index} {why}")
    return _NAMED[name](gpu)


def _find(text: str, gpu: int) -> _BrokenGpu:
    words = [line.split() for line in text.splitlines() if not line.startswith("#")]
    count = next((int(line[1]) for line in words if line[:1] == ["gpus"]), 0)
    if not 0 <= gpu < count:
        has = f"GPUs 0 to {count - 1}" if count > 1 else "GPU 0" if count else "no GPU"
        raise CannotBreak(f"the machine has no GPU {gpu}: it has {has}")
    mine = [line[0] for line in words if line[1:2] == [str(gpu)]]
    described = next(line for line in words if line[:2] == ["gpu", str(gpu)])
    refused = {line[1] for line in words if line[:1] == ["refuse"]}
    has_ecc = described[_ECC_WORD] == "1" and "nvmlDeviceGetTotalEccErrors" not in refused
    ampere = int(described[_COMPUTE_WORD]) >= _AMPERE
    return _BrokenGpu(
        index=gpu,
        links=mine.count("link"),
        has_fabric="fabric" in mine,
        has_ecc=has_ecc,
        remaps_rows=has_ecc and ampere and "nvmlDeviceGetRemappedRows" not in refused,
        wants_resets="field:230" not in refused,
    )


def _is_fault(line: str, gpu: int | None) -> bool:
    words = line.split()
    return words[:1] == ["fault"] and (gpu is None or words[2:3] == [str(gpu)])


def _joined(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
