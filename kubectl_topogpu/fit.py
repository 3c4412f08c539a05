"""`fit`: how many more pods of one shape fit, and where. No IO."""

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from kubectl_topogpu.cluster import GpuCluster
from kubectl_topogpu.report import TableReport
from program.tables import Column, FittingTable
from program.words import counted, ranges, spaced
from proto.kubernetes.objects import Container, ObjectMeta, Pod, PodSpec, Resources
from scheduler_ext.capacity.rooms import MOST_PODS, Room, quota_pods, rooms
from scheduler_ext.requests import GpuRequest, ResourceNames

_MOST_SHOWN = 20


def pod_of(
    names: ResourceNames,
    *,
    namespace: str,
    gpus: int,
    memory_mib: int | None = None,
    memory_percent: int | None = None,
    cores: int | None = None,
    annotations: Mapping[str, str],
) -> Pod:
    """Returns a pod with one container that requests this; options that are not given are not requested."""
    amounts = {names.count: gpus, names.memory: memory_mib, names.memory_percentage: memory_percent, names.cores: cores}
    return Pod(
        metadata=ObjectMeta(
            name="asked", namespace=namespace, annotations={key: value for key, value in annotations.items() if value}
        ),
        spec=PodSpec(
            containers=[
                Container(
                    name="asked",
                    resources=Resources(
                        limits={name: amount for name, amount in amounts.items() if amount is not None}
                    ),
                )
            ]
        ),
    )


def fit(cluster: GpuCluster, request: GpuRequest) -> TableReport:
    """Returns a row for each node: how many more pods fit there, and the GPUs that the first of them would get."""
    snapshot = cluster.snapshot()
    found = rooms(request, snapshot)
    admitted = quota_pods(request, snapshot, found)
    total = sum(room.pods for room in found)
    rows = [
        {
            "node": room.node,
            "pods": room.pods,
            "first_gpus": ranges(room.gpus) if room.gpus else None,
            "then": room.reason,
        }
        for room in sorted(found, key=lambda room: (-room.pods, room.node))
    ]
    document = {"pods": total if admitted is None else min(total, admitted), "quota_pods": admitted, "nodes": rows}
    return TableReport(
        rows=rows, document=document, text=lambda wide: _text(found, total, admitted, request, wide=wide)
    )


def _text(
    found: Sequence[Room], total: int, admitted: int | None, request: GpuRequest, *, wide: bool
) -> RenderableType:
    lines: list[RenderableType] = []
    fitting = sorted((room for room in found if room.pods), key=lambda room: (-room.pods, room.node))
    if not fitting:
        reasons: dict[str, list[str]] = {}
        for room in found:
            reasons.setdefault(room.reason, []).append(room.node)
        where = "the only node with GPUs" if len(found) == 1 else f"any of {counted(len(found), 'node')} with GPUs"
        lines.append(Text(f"no pod of this shape fits on {where}", "red"))
        lines += [
            Text(f"  {counted(len(nodes), 'node')}: {reason}")
            for reason, nodes in sorted(reasons.items())[:_MOST_SHOWN]
        ]
        return Group(*lines)
    where = counted(len(fitting), "node")
    lines.append(Text.assemble("room for ", (counted(total, "pod"), "bold green"), f" of this shape, on {where}"))
    if any(room.pods >= MOST_PODS for room in fitting):
        lines.append(Text(f"more than {spaced(MOST_PODS)} pods of a node are not counted", "yellow"))
    if admitted is not None and admitted < total:
        lines.append(Text(f"the quotas of namespace {request.namespace} admit {admitted} of them", "yellow"))
    shown = fitting if wide else fitting[:_MOST_SHOWN]
    columns = [
        Column(title="node"),
        Column(title="pods", right=True),
        Column(title="the first would get", wraps=True),
        *([Column(title="why no more", wraps=True)] if wide else []),
    ]
    rows = [
        (room.node, spaced(room.pods), f"GPU {ranges(room.gpus)}", *([room.reason] if wide else [])) for room in shown
    ]
    lines.append(FittingTable(columns=columns, rows=rows, everything=wide))
    if len(shown) < len(fitting):
        lines.append(Text(f"and {counted(len(fitting) - len(shown), 'more node')}; -o wide lists all", "dim"))
    return Group(*lines)
