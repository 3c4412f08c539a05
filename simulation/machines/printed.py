"""A matrix that `nvidia-smi topo -m` printed, as `topo` shows links."""

from deviceplugin.machine.matrix import LinkView
from deviceplugin.machine.topology import NVLINK_WEIGHT, SELF, WEIGHTS, Matrix, ScoreMatrix
from simulation.machines.nvidia_smi import SmiTopology


def view_printed(smi: SmiTopology) -> LinkView:
    """A printed matrix names neither UUID nor model nor speed: those are None."""
    count = len(smi.gpus)
    facts: list[dict[str, object]] = [
        {"index": int(name.removeprefix("GPU")), "uuid": None, "name": name} for name in smi.gpus
    ]
    return LinkView(
        gpus=tuple(facts),
        links=smi.links,
        scores=score_printed(smi.links),
        bandwidth_gbps=tuple(tuple(0.0 if i == j else None for j in range(count)) for i in range(count)),
        nics=smi.nics,
        nic_links=smi.nic_links,
        cpu_affinity=smi.cpu_affinity,
        numa_affinity=smi.numa_affinity,
        gpu_numa_id=smi.gpu_numa_id,
        notes=tuple(
            f"{smi.gpus[i]} has {smi.links[i][j]} to {smi.gpus[j]}, which has {smi.links[j][i]} back; "
            "the pair is scored by the worse"
            for i, j in smi.disagreements()
        ),
    )


def score_token(token: str) -> int | None:
    """Returns the lowest score that a printed token can mean; None for an unknown token.

    `NV#` hides the PCIe path of its pair; only SYS, the longest, is certain.
    """
    if token == SELF:
        return 0
    if token.startswith("NV") and token[2:].isdigit():
        links = int(token[2:])
        return WEIGHTS["SYS"] + NVLINK_WEIGHT * links if links else None
    return WEIGHTS.get(token)


def score_printed(links: Matrix) -> ScoreMatrix:
    """Scores of a printed matrix, each pair by the worse of its two cells."""

    def worse(row: int, column: int) -> int | None:
        there, back = score_token(links[row][column]), score_token(links[column][row])
        return None if there is None or back is None else min(there, back)

    size = range(len(links))
    return tuple(tuple(worse(row, column) for column in size) for row in size)
