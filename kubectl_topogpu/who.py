"""`who`: who holds a GPU, a node's GPUs, or which GPUs a pod holds. No IO."""

from collections.abc import Collection, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from kubectl_topogpu.cluster import GpuCluster, GpuNode, GpuView, gpus_named
from kubectl_topogpu.report import Row, TableReport, in_order
from kubectl_topogpu.top import pod_rows
from program.tables import Column, FittingTable
from program.words import gib, model


def everyone(cluster: GpuCluster, namespace: str = "", order: str = "") -> TableReport:
    """Reports on all pods of the namespace that hold GPUs; of any namespace without one. Raises UnknownOrder."""
    begin = namespace and f"{namespace}/"
    held = [(node, gpu) for node in cluster.nodes for gpu in node.gpus]
    pods = {each.pod for _, gpu in held for each in gpu.holders if each.pod.startswith(begin)}
    if not pods:
        whose = f"namespace {namespace}" if namespace else "any namespace"
        return TableReport(rows=[], named="pod", text=lambda _: Text(f"no pod of {whose} holds a GPU"))
    return _report(cluster, held, pods, order)


def holders_of(cluster: GpuCluster, target: str, order: str = "") -> TableReport | None:
    """Reports on a node, or on GPUs by `node/index`, UUID or its beginning. None if there are none."""
    node = cluster.node(target)
    gpus = [(node, gpu) for gpu in node.gpus] if node is not None else list(gpus_named(cluster, target))
    return _report(cluster, gpus, None, order) if gpus else None


def pods_named(cluster: GpuCluster, name: str, namespace: str = "", order: str = "") -> TableReport | None:
    """Reports on the GPUs of pods with this name, of any namespace unless given. None if no such pod holds GPUs."""
    names = {
        held.pod
        for node in cluster.nodes
        for gpu in node.gpus
        for held in gpu.holders
        if held.pod.partition("/")[2] == name and held.pod.startswith(namespace and f"{namespace}/")
    }
    gpus = [each for pod in sorted(names) for each in gpus_of(cluster, pod)]
    return _report(cluster, gpus, names, order) if gpus else None


def nothing(pod: str) -> TableReport:
    """Reports on a pod that holds no GPU."""
    return TableReport(rows=[], named="pod", text=lambda _: Text(f"pod {pod} holds no GPU"))


def _report(
    cluster: GpuCluster, gpus: Sequence[tuple[GpuNode, GpuView]], pods: Collection[str] | None, order: str
) -> TableReport:
    """`pods` are those to show; None for all, and for GPUs without pods."""
    rows = in_order(
        [row for node, gpu in gpus for row in pod_rows(node, gpu) if pods is None or row["pod"] in pods], order
    )

    def text(wide: bool) -> RenderableType:
        columns = [
            Column(title="pod"),
            Column(title="phase", rank=2),
            Column(title="node"),
            Column(title="GPU", right=True),
            Column(title="model", rank=3),
            Column(title="memory", right=True),
            Column(title="cores", rank=1, right=True),
            *([Column(title="asks", wraps=True), Column(title="UUID")] if wide else []),
        ]
        cells = [_cells(row, wide=wide) for row in rows]
        table = FittingTable(columns=columns, rows=cells, more="-o wide shows all.", everything=wide)
        undecided = {name: node.name for node, _ in gpus for name in node.undecided}
        notes = [
            Text(f"! pod {name} has GPUs of node {node} without a decision of the scheduler", "yellow")
            for name, node in undecided.items()
        ]
        shown = {row["pod"] for row in rows}
        resizes = [Text(f"! pod {pod}: {words}", "yellow") for pod, words in cluster.resizes.items() if pod in shown]
        return Group(table, *notes, *resizes)

    return TableReport(rows=rows, text=text, named="pod")


def _cells(row: Row, *, wide: bool) -> Sequence[str]:
    cores = f"{row['cores_percent']} %" if row["cores_percent"] else "no limit"
    amounts = (gib(int(row["memory_mib"] or 0)), cores) if row["pod"] else ("", "")
    more = (str(row["asks"] or ""), str(row["uuid"])) if wide else ()
    return (
        str(row["pod"] or "-"),
        str(row["phase"]),
        str(row["node"]),
        str(row["gpu"]),
        str(row["model"]),
        *amounts,
        *more,
    )


def gpus_of(cluster: GpuCluster, pod: str) -> Sequence[tuple[GpuNode, GpuView]]:
    """Returns the GPUs that the pod `namespace/name` holds a share of."""
    return [(node, gpu) for node in cluster.nodes for gpu in node.gpus if any(each.pod == pod for each in gpu.holders)]


def described(gpus: Sequence[tuple[GpuNode, GpuView]], pod: str) -> str:
    """Returns `GPU 3 (A100-SXM4-80GB): 8.0 GiB, 20 %`, one after the other."""
    parts = []
    for _, gpu in gpus:
        held = next(each for each in gpu.holders if each.pod == pod)
        cores = f"{held.cores} %" if held.cores else "no limit on cores"
        parts.append(f"GPU {gpu.device.index} ({model(gpu.device.type)}): {gib(held.memory_mib)}, {cores}")
    return "; ".join(parts)
