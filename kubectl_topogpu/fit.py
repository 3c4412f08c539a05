"""`fit`: how many more pods of one shape fit, and where. No IO."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.text import Text

from kubectl_topogpu.amounts import RequestedMemory
from kubectl_topogpu.cluster import GpuCluster
from kubectl_topogpu.report import Row, TableReport, in_order
from program.tables import Column, FittingTable
from program.words import counted, ranges, spaced
from proto.kubernetes.objects import Container, ObjectMeta, Pod, PodSpec, Resources
from proto.kubernetes.taints import toleration_of
from scheduler_ext.capacity.rooms import MOST_PODS, quota_pods, rooms
from scheduler_ext.requests import GpuRequest, ResourceNames, read_request

_MOST_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FitShape:
    """A pod with one container. None is not requested.

    It tolerates taints that keep pods without GPUs away, as Kubernetes' admission plugin ExtendedResourceToleration
    makes pods with GPUs do.
    """

    gpus: int
    memory: RequestedMemory = field(default_factory=RequestedMemory)
    cores: int | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)

    def pod(self, names: ResourceNames, namespace: str) -> Pod:
        amounts = {
            names.count: self.gpus,
            names.memory: self.memory.mib,
            names.memory_percentage: self.memory.percent,
            names.cores: self.cores,
        }
        limits: dict[str, str | int | float] = {name: n for name, n in amounts.items() if n is not None}
        return Pod(
            metadata=ObjectMeta(name="asked", namespace=namespace, annotations=dict(self.annotations)),
            spec=PodSpec(
                tolerations=(toleration_of(names.count),),
                containers=[Container(name="asked", resources=Resources(limits=limits))],
            ),
        )


def fit(cluster: GpuCluster, pod: Pod, chosen: Collection[str] | None = None, order: str = "") -> TableReport:
    """Returns a row for each node, or each of the `chosen` ones: how many more pods fit there, and the GPUs that the
    first of them would get. Raises UnknownOrder, LookupError for a pod that requests no GPU, and RequestError.
    """
    request = read_request(pod, cluster.settings)
    if request is None:
        raise LookupError("the shape asks for no GPU")
    snapshot = cluster.snapshot(pod)
    found = [room for room in rooms(request, snapshot) if chosen is None or room.node in chosen]
    admitted = quota_pods(request, snapshot, found)
    total = sum(room.pods for room in found)
    rows = in_order(
        [
            {
                "node": room.node,
                "pods": room.pods,
                "first_gpus": ranges(room.gpus) if room.gpus else None,
                "then": room.reason,
            }
            for room in sorted(found, key=lambda room: (-room.pods, room.node))
        ],
        order,
    )
    document = {"pods": total if admitted is None else min(total, admitted), "quota_pods": admitted, "nodes": rows}
    return TableReport(rows=rows, document=document, text=lambda wide: _text(rows, admitted, request, wide=wide))


def _text(rows: Sequence[Row], admitted: int | None, request: GpuRequest, *, wide: bool) -> RenderableType:
    fitting = [row for row in rows if row["pods"]]
    if not fitting:
        return _nowhere(rows)
    total = sum(int(row["pods"] or 0) for row in fitting)
    where = counted(len(fitting), "node")
    lines: list[RenderableType] = [
        Text.assemble("room for ", (counted(total, "pod"), "bold green"), f" of this shape, on {where}")
    ]
    if any(int(row["pods"] or 0) >= MOST_PODS for row in fitting):
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
    cells = [
        (
            str(row["node"]),
            spaced(int(row["pods"] or 0)),
            f"GPU {row['first_gpus']}",
            *([str(row["then"])] if wide else []),
        )
        for row in shown
    ]
    lines.append(FittingTable(columns=columns, rows=cells, everything=wide))
    if len(shown) < len(fitting):
        lines.append(Text(f"and {counted(len(fitting) - len(shown), 'more node')}; -o wide lists all", "dim"))
    return Group(*lines)


def _nowhere(rows: Sequence[Row]) -> RenderableType:
    reasons = Counter(str(row["then"]) for row in rows)
    where = "the only node with GPUs" if len(rows) == 1 else f"any of {counted(len(rows), 'node')} with GPUs"
    return Group(
        Text(f"no pod of this shape fits on {where}", "red"),
        *(Text(f"  {counted(nodes, 'node')}: {reason}") for reason, nodes in sorted(reasons.items())[:_MOST_SHOWN]),
    )
