"""The pictures that need no cluster and no browser: terminals, from a recorded state, and the architecture.

`python docs/pictures/draw.py` writes them; docs/pictures/record.py records the state, and photographs the status page.
"""

import asyncio
import inspect
import io
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from html import escape
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from kubectl_topogpu.cluster import Wanted, read_cluster
from kubectl_topogpu.interactive import TopApp
from kubectl_topogpu.sources import Recorded
from kubectl_topogpu.views import Observed, View, ViewChoice
from kubectl_topogpu.waiting import waiting
from scheduler_ext.requests import RequestSettings

HERE = Path(__file__).parent
STATE = HERE / "state.json"
TERMINALS: Mapping[str, tuple[str, ...]] = {
    "top": ("top", "node-3", "node-4"),
    "why": ("why", "large"),
    "topo": ("topo", "node-2"),
}
"""By picture, the arguments of `kubectl topogpu`."""
COLUMNS = 116
DRAWN = {"vision/train-b", "node-1", "quit"}
"""Words of the interactive terminal once its columns are as wide as their texts, and its keys are shown."""
_DARK = TerminalTheme(
    (22, 27, 34),
    (214, 220, 228),
    [
        *((72, 79, 88), (255, 123, 114), (86, 211, 100), (227, 179, 65)),
        *((121, 192, 255), (210, 168, 255), (86, 212, 221), (214, 220, 228)),
    ],
)
_FONT_FACES = re.compile(r"@font-face \{\{.*?\}\}", re.DOTALL)


def printed(arguments: tuple[str, ...]) -> str:
    """What the plugin prints about the recorded state, with colours."""
    program = [str(Path(sys.executable).parent / "kubectl-topogpu"), *arguments, "--state", str(STATE)]
    environment = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    return subprocess.run(program, env=environment, capture_output=True, text=True, check=True).stdout


def terminal(arguments: tuple[str, ...]) -> str:
    """A terminal window as SVG. Its fonts are those of the reader's machine: nothing is fetched."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), color_system="truecolor", force_terminal=True)
    command = " ".join(("kubectl topogpu", *arguments))
    console.print(Text.assemble(("$ ", "dim"), (command, "bold")))
    console.print(Text.from_ansi(printed(arguments)), end="")
    whole = inspect.signature(console.export_svg).parameters["code_format"].default
    return console.export_svg(
        title=command, theme=_DARK, code_format=_FONT_FACES.sub("", whole), unique_id=f"terminal-{arguments[0]}"
    )


def interactive() -> str:
    """Returns the GPUs of `kubectl topogpu top -i` as SVG."""
    return asyncio.run(_interactive())


async def _interactive() -> str:
    source = Recorded(str(STATE))

    def read() -> Observed:
        cluster = read_cluster(source.objects(), RequestSettings(), Wanted(decisions=True, fgd=True, waiting=True))
        return Observed(cluster=cluster, nodes=cluster.nodes, readings=None, waiting=waiting(cluster, "").rows)

    # A clock that stands still: the picture has no age.
    app = TopApp(read, ViewChoice(view=View.PODS), now=lambda: 0.0, every=0)
    async with app.run_test(size=(COLUMNS, 30)) as pilot:
        picture = ""
        while not {*words(picture)} >= DRAWN:
            await pilot.pause(0.05)
            picture = app.export_screenshot(title="kubectl topogpu top -i")
    return re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL)


def words(picture: str) -> list[str]:
    """The words in a terminal's picture: they do not depend on the release of what draws it."""
    texts = re.findall(r"<text[^>]*>(.*?)</text>", picture, re.DOTALL)
    return " ".join(texts).replace("&#160;", " ").split()


LIGHT_PAPER = {
    "paper": "#ffffff",
    "ink": "#1f2328",
    "faint": "#59636e",
    "line": "#8c959f",
    "box": "#f6f8fa",
    "ours": "#dafbe1",
    "edge": "#1a7f37",
}
DARK_PAPER = {
    "paper": "#0d1117",
    "ink": "#e6edf3",
    "faint": "#9198a1",
    "line": "#6e7681",
    "box": "#161b22",
    "ours": "#12261e",
    "edge": "#3fb950",
}


def architecture(paper: Mapping[str, str]) -> str:
    """The path of the data, on light or on dark paper."""
    parts = [
        _frame(paper, 20, 20, 400, 400, "GPU node"),
        _frame(paper, 520, 20, 420, 400, "control plane"),
        _box(paper, 50, 60, 340, 56, "GPUs and NVIDIA's driver", "NVML: GPUs, NVLink, PCIe, health"),
        _box(paper, 50, 162, 340, 62, "topogpu-device-plugin", "the node daemon", ours=True),
        _box(paper, 50, 270, 340, 46, "kubelet", ""),
        _box(paper, 50, 352, 340, 46, "container", "its GPUs, its limits, and no others"),
        _box(paper, 550, 60, 360, 56, "API server", "Nodes: GPUs and link scores. Pods: decisions"),
        _box(paper, 550, 190, 360, 62, "topogpu-scheduler", "the extender: which node, which GPUs", ours=True),
        _box(paper, 550, 330, 360, 50, "kube-scheduler, unmodified", ""),
        _arrow(paper, [(220, 116), (220, 160)], "reads", 228, 142),
        _arrow(paper, [(390, 180), (500, 180), (500, 100), (548, 100)], "annotations", 424, 172),
        _arrow(paper, [(548, 76), (480, 76), (480, 204), (392, 204)], "which pod?", 424, 224),
        _arrow(paper, [(600, 116), (600, 188)], "watch", 608, 156),
        _arrow(paper, [(700, 190), (700, 118)], "one Binding: node and GPUs", 708, 156),
        _arrow(paper, [(730, 330), (730, 254)], "/filter, /bind", 738, 296),
        _arrow(paper, [(220, 268), (220, 226)], "Allocate, PreStartContainer", 228, 252),
        _arrow(paper, [(220, 316), (220, 350)], "starts", 228, 338),
    ]
    head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 440" font-family="sans-serif" font-size="14">'
    title = "<title>How a pod gets its GPUs</title>"
    marker = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0,0 L8,4 L0,8 z" fill="{paper["line"]}"/></marker></defs>'
    )
    ground = f'<rect width="960" height="440" fill="{paper["paper"]}"/>'
    return "\n".join([head, title, marker, ground, *parts, "</svg>", ""])


def _frame(paper: Mapping[str, str], x: int, y: int, width: int, height: int, title: str) -> str:
    place = f'x="{x}" y="{y}" width="{width}" height="{height}" rx="10"'
    frame = f'<rect {place} fill="none" stroke="{paper["line"]}" stroke-dasharray="5 5"/>'
    return f"{frame}\n{_label(paper, x + 14, y + 24, title)}"


def _box(
    paper: Mapping[str, str], x: int, y: int, width: int, height: int, title: str, below: str, *, ours: bool = False
) -> str:
    fill, edge = (paper["ours"], paper["edge"]) if ours else (paper["box"], paper["line"])
    middle, top = x + width // 2, y + height // 2 + (-4 if below else 5)
    place = f'x="{x}" y="{y}" width="{width}" height="{height}" rx="8"'
    bold = f'text-anchor="middle" font-weight="bold" fill="{paper["ink"]}"'
    lines = [
        f'<rect {place} fill="{fill}" stroke="{edge}" stroke-width="1.5"/>',
        f'<text x="{middle}" y="{top}" {bold}>{escape(title)}</text>',
    ]
    return "\n".join([*lines, _label(paper, middle, top + 20, below, anchor="middle")] if below else lines)


def _arrow(paper: Mapping[str, str], places: list[tuple[int, int]], label: str, x: int, y: int) -> str:
    path = " ".join(f"{a},{b}" for a, b in places)
    stroke = f'stroke="{paper["line"]}" stroke-width="1.5" marker-end="url(#tip)"'
    return f'<polyline points="{path}" fill="none" {stroke}/>\n{_label(paper, x, y, label)}'


def _label(paper: Mapping[str, str], x: int, y: int, text: str, anchor: str = "start") -> str:
    style = f'text-anchor="{anchor}" font-size="12.5" fill="{paper["faint"]}"'
    return f'<text x="{x}" y="{y}" {style}>{escape(text)}</text>'


def main() -> None:
    for name, arguments in TERMINALS.items():
        (HERE / f"{name}.svg").write_text(terminal(arguments), encoding="utf-8")
    (HERE / "top-i.svg").write_text(interactive(), encoding="utf-8")
    for name, paper in (("light", LIGHT_PAPER), ("dark", DARK_PAPER)):
        (HERE / f"architecture-{name}.svg").write_text(architecture(paper), encoding="utf-8")


if __name__ == "__main__":
    main()
