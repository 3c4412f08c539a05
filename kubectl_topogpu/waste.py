"""`waste` and `frag`: what of the GPUs is given to no pod, and what of that a pod can still get. No IO."""

from collections import Counter

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kubectl_topogpu.cluster import Cluster
from kubectl_topogpu.report import Report, Row
from program.words import counted, gib
from scheduler_ext.outlook.largest import largest
from scheduler_ext.outlook.unused import Unused, unused


def waste(cluster: Cluster) -> Report:
    """Returns a row for each node, as `outlook.unused` counts."""
    rows = [_row(node.name, unused(node.usage)) for node in cluster.nodes if node.usage is not None]
    return Report(rows=rows, text=lambda wide: _waste_text(rows, wide=wide))


def _row(node: str, found: Unused) -> Row:
    return {
        "node": node,
        "gpus": found.gpus,
        "memory_mib": found.memory_mib,
        "idle_gpus": found.idle_gpus,
        "idle_memory_mib": found.idle_memory_mib,
        "unused_memory_mib": found.unused_memory_mib,
        "unused_cores_percent": found.unused_cores,
        "stranded_gpus": found.stranded_gpus,
        "stranded_memory_mib": found.stranded_memory_mib,
        "not_serving_gpus": found.not_serving_gpus,
    }


def _waste_text(rows: list[Row], *, wide: bool) -> RenderableType:
    def total(key: str) -> int:
        return sum(int(row[key] or 0) for row in rows)

    memory = total("memory_mib")
    if not memory:
        return Text("no node has GPUs")

    def part(key: str) -> str:
        return f"{gib(total(key))} ({100 * total(key) // memory} %)"

    lines: list[RenderableType] = [
        Text(f"{counted(total('gpus'), 'GPU')} with {gib(memory)}; not asked for by any pod:"),
        Text(f"  idle      {part('idle_memory_mib')} on {counted(total('idle_gpus'), 'GPU')} without pods"),
        Text(f"  unused    {part('unused_memory_mib')} on GPUs that more pods can share"),
        Text(
            f"  stranded  {part('stranded_memory_mib')} on {counted(total('stranded_gpus'), 'GPU')} "
            "without a free slot or core, or out of service"
        ),
    ]
    worst = sorted(
        rows,
        key=lambda row: (-int(row["stranded_memory_mib"] or 0) - int(row["unused_memory_mib"] or 0), str(row["node"])),
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("node", "idle", "unused", "stranded"):
        table.add_column(title, overflow="fold")
    for row in worst if wide else worst[:10]:
        amounts = [gib(int(row[key] or 0)) for key in ("idle_memory_mib", "unused_memory_mib", "stranded_memory_mib")]
        table.add_row(str(row["node"]), *amounts)
    lines.append(table)
    if not wide and len(worst) > 10:
        lines.append(Text(f"and {counted(len(worst) - 10, 'more node')}; -o wide lists all", "dim"))
    return Group(*lines)


def frag(cluster: Cluster) -> Report:
    """Returns a row for each number of GPUs on one node: how many pods with that many whole GPUs fit, and the most
    memory of each GPU with which a pod fits.
    """
    rows: list[Row] = [
        {
            "gpus": each.gpus,
            "whole_pods": each.whole_pods,
            "whole_pods_if_empty": each.whole_pods_if_empty,
            "largest_share_mib": each.share_mib,
        }
        for each in largest(cluster.snapshot())
    ]
    return Report(rows=rows, text=lambda _: _frag_text(cluster, rows))


def _frag_text(cluster: Cluster, rows: list[Row]) -> RenderableType:
    if not rows:
        return Text("no node has GPUs")
    gpus = [gpu for node in cluster.nodes for gpu in node.gpus]
    free = sum(gpu.free_memory_mib for gpu in gpus if gpu.serves)
    broken = sum(gpu.free_memory_mib for gpu in gpus if gpu.serves and not gpu.is_free)
    part = 100 * broken // free if free else 0
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("GPUs on one node", "pods with whole GPUs that fit", "of at most", "largest share of each GPU"):
        table.add_column(title, overflow="fold")
    for row in rows:
        share = int(row["largest_share_mib"] or 0)
        table.add_row(
            str(row["gpus"]), str(row["whole_pods"]), str(row["whole_pods_if_empty"]), gib(share) if share else "none"
        )
    nodes = Counter(sum(gpu.is_free for gpu in node.gpus) for node in cluster.nodes if node.gpus)
    spread = ", ".join(f"{counted(number, 'node')} with {free_gpus}" for free_gpus, number in sorted(nodes.items()))
    return Group(
        Text(f"{gib(free)} of memory are free, {part} % of it on GPUs that are shared already"),
        table,
        Text(f"free GPUs on a node: {spread}"),
    )
