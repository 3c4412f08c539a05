"""`waste` and `frag`: what of the GPUs is given to no pod, and what of that a pod can still get. No IO."""

from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from kubectl_topogpu.cluster import GpuCluster
from kubectl_topogpu.report import Row, TableReport, in_order
from kubectl_topogpu.top import notes
from kubectl_topogpu.used import NOT_KNOWN, Readings
from program.tables import Column, FittingTable
from program.words import counted, gib, spaced
from scheduler_ext.capacity.largest import largest
from scheduler_ext.capacity.unused import unused
from scheduler_ext.cluster.snapshot import NodeUsage

_MOST_SHOWN = 10


def waste(cluster: GpuCluster, readings: Readings | None = None, order: str = "") -> TableReport:
    """Returns a row for each node, as `capacity.unused` counts: the worst first, or in `order`. `readings` are None if
    they were not requested. Raises UnknownOrder.
    """
    found = [_row(node.name, node.usage, readings) for node in cluster.nodes if node.usage is not None]
    rows = in_order(found, order) if order else sorted(found, key=_worst_first)
    return TableReport(rows=rows, text=lambda wide: _waste_text(cluster, rows, readings, wide=wide))


def _row(node: str, usage: NodeUsage, readings: Readings | None) -> Row:
    found = unused(usage)
    row: Row = {
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
    return row if readings is None else {**row, "held_not_in_use_mib": _not_in_use(usage, readings)}


def _not_in_use(usage: NodeUsage, readings: Readings) -> int | None:
    """Memory that pods hold and no process uses; None unless what is used is known of every GPU that pods hold."""
    total = 0
    for gpu in usage.gpus:
        used = readings.gpus.get(gpu.device.uuid, NOT_KNOWN).memory_mib
        if gpu.replicas and used is None:
            return None
        total += max(gpu.memory_mib - (used or 0), 0) if gpu.replicas else 0
    return total


def _worst_first(row: Row) -> tuple[int, str]:
    lost = sum(int(row.get(key) or 0) for key in ("unused_memory_mib", "stranded_memory_mib", "held_not_in_use_mib"))
    return -lost, str(row["node"])


def _waste_text(cluster: GpuCluster, rows: Sequence[Row], readings: Readings | None, *, wide: bool) -> RenderableType:
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
            "without a free replica or core, or out of service"
        ),
    ]
    keys = ["idle_memory_mib", "unused_memory_mib", "stranded_memory_mib"]
    titles = ["idle", "unused", "stranded"]
    if readings is not None:
        lines.append(Text(f"held, but not in use now: {part('held_not_in_use_mib')}"))
        keys.append("held_not_in_use_mib")
        titles.append("held, not in use")
    columns = [Column(title="node"), *(Column(title=title, right=True) for title in titles)]
    cells = [
        (str(row["node"]), *("?" if row[key] is None else gib(int(row[key] or 0)) for key in keys))
        for row in (rows if wide else rows[:_MOST_SHOWN])
    ]
    lines.append(FittingTable(columns=columns, rows=cells, everything=wide))
    if not wide and len(rows) > _MOST_SHOWN:
        lines.append(Text(f"and {counted(len(rows) - _MOST_SHOWN, 'more node')}; -o wide lists all", "dim"))
    return Group(*lines, *notes(cluster, readings))


def frag(cluster: GpuCluster) -> TableReport:
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
    return TableReport(rows=rows, text=lambda _: _frag_text(cluster, rows))


def _frag_text(cluster: GpuCluster, rows: list[Row]) -> RenderableType:
    if not rows:
        return Text("no node has GPUs")
    gpus = [gpu for node in cluster.nodes for gpu in node.gpus]
    free = sum(gpu.free_memory_mib for gpu in gpus if gpu.serves)
    broken = sum(gpu.free_memory_mib for gpu in gpus if gpu.serves and not gpu.is_free)
    part = 100 * broken // free if free else 0
    columns = (
        Column(title="GPUs on one node", right=True),
        Column(title="pods with whole GPUs that fit", right=True),
        Column(title="of at most", right=True, rank=1),
        Column(title="largest share of each GPU", right=True),
    )
    cells = [
        (
            str(row["gpus"]),
            spaced(int(row["whole_pods"] or 0)),
            spaced(int(row["whole_pods_if_empty"] or 0)),
            gib(int(row["largest_share_mib"])) if row["largest_share_mib"] else "none",
        )
        for row in rows
    ]
    nodes = Counter(sum(gpu.is_free for gpu in node.gpus) for node in cluster.nodes if node.gpus)
    spread = ", ".join(f"{counted(number, 'node')} with {free_gpus}" for free_gpus, number in sorted(nodes.items()))
    return Group(
        Text(f"{gib(free)} of memory are free, {part} % of it on GPUs that are shared already"),
        FittingTable(columns=columns, rows=cells),
        Text(f"free GPUs on a node: {spread}"),
    )
