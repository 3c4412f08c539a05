"""`topo`: how the GPUs of a node are connected, and who holds them. No IO.

A pair's score is 10 (SYS) to 60 (PSB) for the PCIe path, and 100 more for each NVLink (deviceplugin.machine.topology);
other writers of the annotation, such as HAMi's plugin, mean the same.
"""

from collections.abc import Sequence
from html import escape
from math import cos, pi, sin

from rich.console import Group, RenderableType
from rich.text import Text

from kubectl_topogpu.cluster import GpuCluster, GpuNode, GpuView
from kubectl_topogpu.report import Row, TableReport
from program.tables import Column, FittingTable, Matrix
from program.words import model, printable
from scheduler_ext.capacity.unused import domain_rooms, named_domains

NVLINK = 100
_PATHS = {60: "PSB", 50: "PIX", 40: "PXB", 30: "PHB", 20: "NODE", 10: "SYS"}
_COLOURS = {"NV": "green", "PSB": "cyan", "PIX": "cyan", "PXB": "cyan", "PHB": "yellow", "NODE": "yellow", "SYS": "red"}
_STROKES = {
    "NV": "#2e8b57",
    "PSB": "#2a8fbd",
    "PIX": "#2a8fbd",
    "PXB": "#2a8fbd",
    "PHB": "#b8860b",
    "NODE": "#b8860b",
    "SYS": "#b0b0b0",
}


def link(score: int | None) -> str:
    """Returns `NV12`, `PIX` … as `nvidia-smi topo -m` names it; `?` if unknown."""
    if score is None:
        return "?"
    return f"NV{score // NVLINK}" if score >= NVLINK else _PATHS.get(score, "?")


def domains(cluster: GpuCluster) -> TableReport:
    """Returns a row for each domain that nodes share, such as a rack or an NVLink clique."""
    usages = (node.usage for node in cluster.nodes if node.usage is not None)
    found = domain_rooms(usages, cluster.settings.topology_levels)
    rows: list[Row] = [
        {
            "level": each.level,
            "domain": each.name,
            "nodes": each.nodes,
            "whole_nodes_free": each.whole,
            "gpus": each.gpus,
            "free_gpus": each.free_gpus,
        }
        for each in found
    ]
    if not rows:
        words = "No node with GPUs has a label that names a domain, such as nvidia.com/gpu.clique."
        return TableReport(rows=rows, text=lambda _: Text(words), named="domain")
    titles = ("level", "domain", "nodes", "free as a whole", "GPUs", "free")
    columns = [Column(title=title, right=at > 1) for at, title in enumerate(titles)]
    lines = [[printable(str(value)) for value in row.values()] for row in rows]
    table = FittingTable(columns=columns, rows=lines, more="-o wide shows all.")
    return TableReport(rows=rows, text=lambda _: table, named="domain")


def topo(node: GpuNode, cluster: GpuCluster) -> TableReport:
    """Returns a row for each pair of GPUs."""
    usages = [each.usage for each in cluster.nodes if each.usage is not None]
    own = set(named_domains(node.usage.node)) if node.usage is not None else set()
    every = domain_rooms(usages, cluster.settings.topology_levels) if own else ()
    shared = [str(each) for each in every if (each.level, each.name) in own]
    rows: list[Row] = [
        {
            "node": node.name,
            "gpu": a.device.index,
            "peer": b.device.index,
            "link": link(score := _score(node, a, b)),
            "score": score,
        }
        for at, a in enumerate(node.gpus)
        for b in node.gpus[at + 1 :]
    ]
    return TableReport(rows=rows, text=lambda wide: _text(node, shared, wide=wide))


def _score(node: GpuNode, a: GpuView, b: GpuView) -> int | None:
    scores = {} if node.usage is None else node.usage.node.pair_scores
    return scores.get(a.device.uuid, {}).get(b.device.uuid)


def _family(word: str) -> str:
    return "NV" if word.startswith("NV") else word


def _text(node: GpuNode, shared: Sequence[str], *, wide: bool) -> RenderableType:
    holders = [_holders(gpu, wide=wide) for gpu in node.gpus]
    lines = [Text(printable(line)) for line in shared]
    return Group(Text(node.name, "bold"), *lines, _matrix(node), *holders, Text(_LEGEND, "dim"))


_LEGEND = (
    "NV#: number of NVLinks. PIX, PXB: PCIe switches. PHB, NODE: one CPU socket. SYS: between sockets. ?: not known."
)


def _matrix(node: GpuNode) -> Matrix:
    columns = [Column(title=""), *(Column(title=str(gpu.device.index), right=True) for gpu in node.gpus)]

    def cell(a: GpuView, b: GpuView) -> Text:
        word = "X" if a is b else link(_score(node, a, b))
        return Text(word, _COLOURS.get(_family(word), "dim"))

    rows: list[list[str | Text]] = [[f"GPU {a.device.index}", *(cell(a, b) for b in node.gpus)] for a in node.gpus]
    return Matrix(columns=columns, rows=rows)


def _holders(gpu: GpuView, *, wide: bool) -> Text:
    pods = ", ".join(held.pod for held in gpu.holders) or gpu.state or "free"
    numa = f"  NUMA {gpu.device.numa}  {gpu.device.uuid}" if wide else ""
    return Text(f"GPU {gpu.device.index}  {model(gpu.device.type)}{numa}: {pods}")


def topo_svg(node: GpuNode) -> str:
    """Draws an SVG for light and dark pages: GPUs on a circle; a thicker line is a better link."""
    size, centre, radius = 640, 320, 250
    places = {
        gpu.device.uuid: (
            centre + radius * sin(2 * pi * at / len(node.gpus)),
            centre - radius * cos(2 * pi * at / len(node.gpus)),
        )
        for at, gpu in enumerate(node.gpus)
    }
    pairs = [(a, b, _score(node, a, b)) for at, a in enumerate(node.gpus) for b in node.gpus[at + 1 :]]
    lines = [
        f'<line x1="{places[a.device.uuid][0]:.0f}" y1="{places[a.device.uuid][1]:.0f}" '
        f'x2="{places[b.device.uuid][0]:.0f}" y2="{places[b.device.uuid][1]:.0f}" '
        f'stroke="{_STROKES.get(_family(link(score)), "#b0b0b0")}" stroke-width="{_width(score)}">'
        f"<title>GPU {a.device.index} to GPU {b.device.index}: {link(score)}</title></line>"
        for a, b, score in sorted(pairs, key=lambda pair: pair[2] or 0)
    ]
    circles = []
    for gpu in node.gpus:
        x, y = places[gpu.device.uuid]
        holders = ", ".join(held.pod for held in gpu.holders) or gpu.state or "free"
        share = gpu.usage.memory_mib / gpu.device.memory_mib if gpu.device.memory_mib else 0
        fill = "#d9534f" if not gpu.serves else "#e8f5e9" if gpu.is_free else "#ffd27f" if share < 1 else "#ff9f6b"
        circles.append(
            f"<g><title>{escape(printable(holders))}</title>"
            f'<circle cx="{x:.0f}" cy="{y:.0f}" r="34" fill="{fill}" stroke="#555"/>'
            f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="middle" dominant-baseline="central" fill="#111">'
            f"{gpu.device.index}</text></g>"
        )
    title = f"{escape(printable(node.name))}: {len(node.gpus)} GPUs"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size} {size}" font-family="sans-serif" font-size="22" '
        f'role="img" aria-label="{title}"><title>{title}</title>' + "".join((*lines, *circles)) + "</svg>\n"
    )


def _width(score: int | None) -> float:
    if score is None:
        return 0.5
    return min(2 + score / NVLINK / 3, 8) if score >= NVLINK else 1
