"""`waste` and `frag`: what of the GPUs is given to no pod, and what of that a pod can still get. No IO."""

from collections import Counter
from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kubectl_topogpu.cluster import Cluster, Gpu, GpuNode
from kubectl_topogpu.report import Report, Row, counted, gib

WHOLE = (1, 2, 4, 8, 16)


def waste(cluster: Cluster) -> Report:
    """Returns a row for each node. Memory that no pod asked for is `idle` on GPUs without pods and `unused` on GPUs
    that pods can still share. It is `stranded` where they cannot: no core or slot is left, or no pod may get the GPU.
    """
    rows = [_waste_of(node) for node in cluster.nodes if node.gpus]
    return Report(rows=rows, text=lambda wide: _waste_text(rows, wide=wide))


def _waste_of(node: GpuNode) -> Row:
    idle = [gpu for gpu in node.gpus if gpu.is_free]
    stranded = [gpu for gpu in node.gpus if _is_stranded(gpu)]
    shared = [gpu for gpu in node.gpus if gpu not in idle and gpu not in stranded]
    return {
        "node": node.name,
        "gpus": len(node.gpus),
        "memory_mib": sum(gpu.device.memory_mib for gpu in node.gpus),
        "idle_gpus": len(idle),
        "idle_memory_mib": _free(idle),
        "unused_memory_mib": _free(shared),
        "unused_cores_percent": sum(gpu.free_cores for gpu in shared),
        "stranded_gpus": len(stranded),
        "stranded_memory_mib": _free(stranded),
        "not_serving_gpus": sum(not gpu.serves for gpu in node.gpus),
    }


def _is_stranded(gpu: Gpu) -> bool:
    """Tells whether it has free memory that no further container can get."""
    return bool(gpu.free_memory_mib) and not (gpu.serves and gpu.free_slots and gpu.free_cores)


def _free(gpus: Iterable[Gpu]) -> int:
    return sum(gpu.free_memory_mib for gpu in gpus)


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
    """Returns a row for each number of GPUs on one node: how many pods with that many whole GPUs fit, and the largest
    share.

    `largest_share_mib` is the most memory that is free on each of that many GPUs of one node.
    """
    most = max((len(node.gpus) for node in cluster.nodes), default=0)
    rows: list[Row] = [_frag_row(cluster, count) for count in WHOLE if count <= most]
    return Report(rows=rows, text=lambda _: _frag_text(cluster, rows))


def _frag_row(cluster: Cluster, count: int) -> Row:
    whole = sum(sum(gpu.is_free for gpu in node.gpus) // count for node in cluster.nodes)
    empty = sum(len(node.gpus) // count for node in cluster.nodes)
    largest = 0
    for node in cluster.nodes:
        free = sorted((gpu.free_memory_mib for gpu in node.gpus if not _is_closed(gpu)), reverse=True)
        if len(free) >= count:
            largest = max(largest, free[count - 1])
    return {"gpus": count, "whole_pods": whole, "whole_pods_if_empty": empty, "largest_share_mib": largest}


def _is_closed(gpu: Gpu) -> bool:
    return not (gpu.serves and gpu.free_slots and gpu.free_cores)


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
