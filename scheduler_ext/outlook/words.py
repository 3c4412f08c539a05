"""Amounts, counts and reasons in plain words."""

from collections.abc import Sequence

from scheduler_ext.scheduling.misfit import Reason

WORDS = {
    Reason.NODE_INSUFFICIENT_DEVICE: "has fewer GPUs than asked for",
    Reason.NOT_HEALTHY: "unhealthy",
    Reason.CORDONED: "cordoned",
    Reason.TYPE: "another model than asked for",
    Reason.UUID: "not one of the GPUs asked for",
    Reason.LIMITS: "a part of a GPU is asked for, and the node enforces no limits",
    Reason.SLOTS: "no slot left",
    Reason.EXCLUSIVE: "a whole GPU is asked for, and this one is shared",
    Reason.QUOTA: "the namespace's quota is used up",
    Reason.MEMORY: "too little free memory",
    Reason.CORES: "too few free cores",
    Reason.CORES_EXHAUSTED: "all cores reserved",
    Reason.MIG: "no free MIG instance that is large enough",
    Reason.NUMA: "too few such GPUs on one NUMA node",
    Reason.TOO_FEW: "fits, but there are too few such GPUs",
}
"""Every reason of a GPU. `NOT_LOOKED_AT` is none: no decision on one snapshot leaves a node out."""


def gib(mib: int) -> str:
    """`39.6 GiB`; small amounts in MiB."""
    return f"{mib} MiB" if mib < 1024 else f"{mib / 1024:.1f} GiB"


def spaced(number: int) -> str:
    """`30 000`."""
    return f"{number:,}".replace(",", " ")


def counted(number: int, noun: str) -> str:
    """`1 GPU`, `3 GPUs`."""
    return f"{spaced(number)} {noun}" if number == 1 else f"{spaced(number)} {noun}s"


def ranges(indices: Sequence[int]) -> str:
    """`0–3, 6`."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)
