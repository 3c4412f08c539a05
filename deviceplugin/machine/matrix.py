"""Shows a link matrix, as text for people and as JSON for programs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from deviceplugin.machine.readings import GpuReading, MigReading
from deviceplugin.machine.topology import (
    SELF,
    UNKNOWN,
    BandwidthMatrix,
    Matrix,
    ScoreMatrix,
    Topology,
)
from program.tables import Column
from program.tables import Matrix as LinkTable

_MEANINGS = {
    "PSB": "two GPUs on one board",
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "the CPU's host bridge",
    "NODE": "host bridges of one NUMA node",
    "SYS": "the link between NUMA nodes",
    "SOC": "the link between CPU sockets",
    UNKNOWN: "could not be read",
}
_STYLES = {
    SELF: "dim",
    "PSB": "cyan",
    "PIX": "cyan",
    "PXB": "cyan",
    "PHB": "yellow",
    "NODE": "yellow",
    "SYS": "red",
    "SOC": "red",
}
_NVLINK_STYLE = "bold green"


AffinityColumn = tuple[str | None, ...] | None
"""One cell for each GPU, None where it is unknown; no column where none is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkView:
    """The input of `topo`, whichever way it was read. `gpus` are rows of facts, each with at least index and name."""

    gpus: tuple[dict[str, object], ...]
    models: tuple[str, ...] = ()
    """The description of each GPU, in words, where it is known."""
    links: Matrix
    scores: ScoreMatrix
    bandwidth_gbps: BandwidthMatrix
    nics: tuple[str, ...] = ()
    nic_links: Matrix = ()
    cpu_affinity: AffinityColumn = None
    numa_affinity: AffinityColumn = None
    gpu_numa_id: AffinityColumn = None
    notes: tuple[str, ...] = ()


def view_machine(topology: Topology, problems: Sequence[str] = ()) -> LinkView:
    gpus = topology.gpus
    return LinkView(
        gpus=tuple(gpu_facts(gpu) for gpu in gpus),
        models=tuple(map(_model, gpus)),
        links=topology.links,
        scores=topology.scores,
        bandwidth_gbps=topology.bandwidth_gbps,
        cpu_affinity=tuple(gpu.cpu_affinity for gpu in gpus),
        numa_affinity=tuple(gpu.numa_affinity for gpu in gpus),
        gpu_numa_id=tuple("N/A" if gpu.own_numa is None else str(gpu.own_numa) for gpu in gpus),
        notes=tuple(problems),
    )


def gpu_facts(gpu: GpuReading) -> dict[str, object]:
    """Returns one GPU for JSON; an unknown fact is None, and so are the MIG devices of a GPU without MIG."""
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "bus_id": gpu.bus_id,
        "memory_mib": gpu.memory_mib,
        "numa": gpu.numa if gpu.numa >= 0 else None,
        "healthy": gpu.healthy,
        "problem": gpu.problem or None,
        "mig_devices": [_mig_facts(mig) for mig in gpu.mig_devices] if gpu.mig_enabled else None,
    }


def _mig_facts(mig: MigReading) -> dict[str, object]:
    return {"uuid": mig.uuid, "profile": mig.profile, "memory_mib": mig.memory_mib}


def _model(gpu: GpuReading) -> str:
    sliced = "".join(f", MIG {mig.profile}" for mig in gpu.mig_devices)
    return f"{gpu.name}{sliced}: {gpu.problem}" if gpu.problem else f"{gpu.name}{sliced}"


def as_json(view: LinkView) -> dict[str, object]:
    return {
        "gpus": list(view.gpus),
        "links": view.links,
        "scores": view.scores,
        "bandwidth_gbps": view.bandwidth_gbps,
        "nics": view.nics,
        "cpu_affinity": view.cpu_affinity,
        "numa_affinity": view.numa_affinity,
        "gpu_numa_id": view.gpu_numa_id,
    }


def as_text(view: LinkView) -> RenderableType:
    """Returns the matrix with affinities and NICs, then scores and speeds where known, then the words' meanings."""
    if not view.gpus:
        return Group(Text("No NVIDIA GPU on this machine."), *(Text(note, "yellow") for note in view.notes))
    parts: list[RenderableType] = [_link_table(view)]
    if len(view.gpus) > 1:
        parts += [Text(), _number_table(view, "Score", view.scores)]
    if any(value for row in view.bandwidth_gbps for value in row):
        parts += [Text(), _number_table(view, "GB/s one way", view.bandwidth_gbps)]
    parts += [Text(), _legend(view), *(Text(f"! {note}", "yellow") for note in view.notes)]
    return Group(*parts)


def style_of(token: str) -> str:
    return _NVLINK_STYLE if token.startswith("NV") else _STYLES.get(token, "magenta")


def _labels(view: LinkView) -> list[str]:
    return [f"GPU{gpu['index']}" for gpu in view.gpus]


def _link_table(view: LinkView) -> LinkTable:
    affinities = [
        (title, cells)
        for title, cells in (
            ("CPU affinity", view.cpu_affinity),
            ("NUMA", view.numa_affinity),
            ("GPU NUMA ID", view.gpu_numa_id),
        )
        if cells is not None and any(cell not in ("", "N/A") for cell in cells)
    ]
    rows: list[list[str | Text]] = []
    for row, label in enumerate(_labels(view)):
        tokens = (*view.links[row], *(view.nic_links[row] if view.nic_links else ()))
        places = [UNKNOWN if cells[row] is None else str(cells[row]) for _, cells in affinities]
        model = [Text(view.models[row], "red" if view.gpus[row]["problem"] else "")] if view.models else []
        rows.append([Text(label, "bold"), *(Text(token, style_of(token)) for token in tokens), *places, *model])
    titles = ["", *_labels(view), *view.nics, *(title for title, _ in affinities), *(["Model"] if view.models else [])]
    return LinkTable(columns=[Column(title=title) for title in titles], rows=rows, title="Links")


def _number_table(view: LinkView, title: str, matrix: Iterable[Iterable[float | None]]) -> LinkTable:
    rows: list[list[str | Text]] = []
    for row, (label, numbers) in enumerate(zip(_labels(view), matrix, strict=True)):
        shown = ["·" if row == column else _number(number) for column, number in enumerate(numbers)]
        cells = [Text(text, style_of(token)) for text, token in zip(shown, view.links[row], strict=True)]
        rows.append([Text(label, "bold"), *cells])
    columns = [Column(title=""), *(Column(title=label, right=True) for label in _labels(view))]
    return LinkTable(columns=columns, rows=rows, title=title)


def _number(number: float | None) -> str:
    return UNKNOWN if number is None else f"{number:.0f}"


def _legend(view: LinkView) -> Text:
    tokens = {token for row in (*view.links, *view.nic_links) for token in row}
    legend = Text()
    if any(token.startswith("NV") for token in tokens):
        legend.append("NV#", _NVLINK_STYLE).append(" # NVLinks, directly or through NVSwitches  ")
    for token, meaning in _MEANINGS.items():
        if token in tokens:
            legend.append(token, style_of(token)).append(f" {meaning}  ")
    return legend
