"""`who`: who holds a GPU, a node's GPUs, or which GPUs a pod holds. No IO."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kubectl_topogpu.cluster import Cluster, Gpu, GpuNode, gpus_named
from kubectl_topogpu.report import Report
from kubectl_topogpu.top import pod_rows
from program.words import gib, model


class NotFound(LookupError):
    """The message is one sentence."""


def who(cluster: Cluster, target: str, namespace: str) -> Report:
    """Reports on `target`: a node, `node/index`, a GPU's UUID or its beginning, or a pod, with or without its
    namespace.

    Raises NotFound.
    """
    node = cluster.node(target)
    if node is not None:
        return _report([(node, gpu) for gpu in node.gpus], "")
    gpus = list(gpus_named(cluster, target))
    if gpus:
        return _report(gpus, "")
    pod = target if target in cluster.pods else f"{namespace}/{target}"
    if pod in cluster.pods:
        return _report(gpus_of(cluster, pod), pod)
    raise NotFound(f"{target!r} is not a node with GPUs, a GPU (node/index or UUID), or a pod of namespace {namespace}")


def _report(gpus: Sequence[tuple[GpuNode, Gpu]], pod: str) -> Report:
    rows = [row for node, gpu in gpus for row in pod_rows(node, gpu) if not pod or row["pod"] == pod]

    def text(wide: bool) -> RenderableType:
        if not rows:
            return Text(f"pod {pod} holds no GPU")
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for title in ("pod", "phase", "node", "GPU", "model", "memory", "cores", *(["UUID"] if wide else [])):
            table.add_column(title, overflow="fold")
        for row in rows:
            cores = f"{row['cores_percent']} %" if row["cores_percent"] else "no limit"
            amounts = (gib(int(row["memory_mib"] or 0)), cores) if row["pod"] else ("", "")
            uuid = [str(row["uuid"])] if wide else []
            table.add_row(
                str(row["pod"] or "nobody"),
                str(row["phase"]),
                str(row["node"]),
                str(row["gpu"]),
                str(row["model"]),
                *amounts,
                *uuid,
            )
        undecided = {name: node.name for node, _ in gpus for name in node.undecided}
        notes = [
            Text(f"! pod {name} has GPUs of node {node} without a decision of the scheduler", "yellow")
            for name, node in undecided.items()
        ]
        return Group(table, *notes)

    return Report(rows=rows, text=text)


def gpus_of(cluster: Cluster, pod: str) -> Sequence[tuple[GpuNode, Gpu]]:
    """Returns the GPUs of which the pod `namespace/name` holds a share."""
    return [(node, gpu) for node in cluster.nodes for gpu in node.gpus if any(each.pod == pod for each in gpu.holders)]


def described(gpus: Sequence[tuple[GpuNode, Gpu]], pod: str) -> str:
    """`GPU 3 (A100-SXM4-80GB): 8.0 GiB, 20 %`, one after the other."""
    parts = []
    for _, gpu in gpus:
        held = next(each for each in gpu.holders if each.pod == pod)
        cores = f"{held.cores} %" if held.cores else "no limit on cores"
        parts.append(f"GPU {gpu.device.index} ({model(gpu.device.type)}): {gib(held.memory_mib)}, {cores}")
    return "; ".join(parts)
