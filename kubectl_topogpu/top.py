"""`top`: nodes, their GPUs, and the pods that hold them. No IO."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby
from typing import TypeVar

from rich.console import Group, RenderableType
from rich.text import Text

from kubectl_topogpu.cluster import GpuCluster, GpuNode, GpuView, HeldPart
from kubectl_topogpu.report import Row, TableReport, key_of, rank
from kubectl_topogpu.used import NOT_KNOWN, Readings, Used
from program.tables import Column, FittingTable
from program.words import counted, gib, model, ranges
from proto.kubernetes.taints import CORDON
from scheduler_ext.capacity.unused import named_domains, set_aside_words

T = TypeVar("T")

_BAR = 10
_NO_BAR = " " * (_BAR + 1)


MOST_LINES = 1_000
"""Lines of text, unless a level is requested: more are hard to read and take long to lay out."""


class Level(StrEnum):
    NODES = "nodes"
    GPUS = "gpus"
    PODS = "pods"


def of_namespace(nodes: Sequence[GpuNode], namespace: str) -> Sequence[GpuNode]:
    """Returns GPUs that pods of the namespace hold, and of their holders only these pods; all without a namespace."""
    if not namespace:
        return nodes
    begin = f"{namespace}/"
    found = []
    for node in nodes:
        held = [(gpu, tuple(each for each in gpu.holders if each.pod.startswith(begin))) for gpu in node.gpus]
        gpus = tuple(replace(gpu, holders=own) for gpu, own in held if own)
        undecided = tuple(pod for pod in node.undecided if pod.startswith(begin))
        if gpus or undecided:
            found.append(replace(node, gpus=gpus, undecided=undecided))
    return tuple(found)


def top(
    cluster: GpuCluster,
    nodes: Sequence[GpuNode],
    level: Level | None,
    readings: Readings | None = None,
    order: str = "",
) -> TableReport:
    """Returns a row for each node, GPU, or pod on a GPU; a GPU without pods has a row at every level. Without a level,
    the rows are those of pods, and the text has less detail if it were too long. `readings` are None if what is used
    was not requested. An `order` sorts the nodes, and the GPUs of each. Raises UnknownOrder.
    """
    nodes = _ordered(nodes, readings, order) if order and nodes else nodes
    rows = {
        Level.NODES: lambda: [node_row(node) for node in nodes],
        Level.GPUS: lambda: [gpu_row(node, gpu, readings) for node in nodes for gpu in node.gpus],
        Level.PODS: lambda: [row for node in nodes for gpu in node.gpus for row in pod_rows(node, gpu, readings)],
    }[level or Level.PODS]()
    return TableReport(rows=rows, text=lambda wide: _text(cluster, nodes, level, readings, wide=wide))


def _ordered(nodes: Sequence[GpuNode], readings: Readings | None, order: str) -> Sequence[GpuNode]:
    node_rows = [node_row(node) for node in nodes]
    gpu_rows = [[gpu_row(node, gpu, readings) for gpu in node.gpus] for node in nodes]
    known = [*node_rows[0], *(key for key in next(filter(None, gpu_rows), [{}])[0] if key not in node_rows[0])]
    key = key_of(order, known)

    def ranked(rows: Sequence[Row], values: Sequence[T]) -> tuple[T, ...]:
        if not any(key in row for row in rows):
            return tuple(values)
        return tuple(values[at] for at in sorted(range(len(rows)), key=lambda at: rank(rows[at].get(key))))

    inside = [
        replace(node, gpus=ranked(rows, node.gpus)) if node.gpus else node
        for node, rows in zip(nodes, gpu_rows, strict=True)
    ]
    return ranked(node_rows, inside)


def _fitting_level(nodes: Sequence[GpuNode]) -> Level:
    gpus = sum(1 + len(node.gpus) for node in nodes)
    pods = sum(len(gpu.holders) for node in nodes for gpu in node.gpus)
    return Level.PODS if gpus + pods <= MOST_LINES else Level.GPUS if gpus <= MOST_LINES else Level.NODES


def pod_rows(node: GpuNode, gpu: GpuView, readings: Readings | None = None) -> Iterator[Row]:
    where: Row = {
        "node": node.name,
        "gpu": gpu.device.index,
        "uuid": str(gpu.device.uuid),
        "model": model(gpu.device.type),
        "gpu_memory_mib": gpu.device.memory_mib,
        "gpu_cores_percent": gpu.device.cores,
        "gpu_replicas": gpu.device.replicas,
    }
    if not gpu.holders:
        free: Row = {"pod": None, "phase": gpu.state or "free", "memory_mib": 0, "cores_percent": 0, "replicas": 0}
        yield {**where, **free, "asks": None, **_used_row(NOT_KNOWN, readings)}
    for held in gpu.holders:
        yield {
            **where,
            "pod": held.pod,
            "phase": held.phase,
            "memory_mib": held.memory_mib,
            "cores_percent": held.cores,
            "replicas": held.replicas,
            "asks": held.asks,
            **_used_row(_used_by(held, gpu, readings), readings),
        }


def _used_row(used: Used, readings: Readings | None) -> Row:
    if readings is None:
        return {}
    return {"memory_in_use_mib": used.memory_mib, "cores_in_use_percent": used.cores_percent}


def _used_by(held: HeldPart, gpu: GpuView, readings: Readings | None) -> Used:
    return NOT_KNOWN if readings is None else readings.pods.get((held.pod, gpu.device.uuid), NOT_KNOWN)


def gpu_row(node: GpuNode, gpu: GpuView, readings: Readings | None) -> Row:
    device, usage = gpu.device, gpu.usage
    return {
        "node": node.name,
        "gpu": device.index,
        "uuid": str(device.uuid),
        "model": model(device.type),
        "numa": device.numa,
        "state": gpu.state or "ok",
        "memory_used_mib": usage.memory_mib,
        "memory_mib": device.memory_mib,
        "cores_used_percent": usage.cores,
        "cores_percent": device.cores,
        "replicas_used": usage.replicas,
        "replicas": device.replicas,
        "pods": len(gpu.holders),
        **_used_row(_used_of(gpu, readings), readings),
    }


def node_row(node: GpuNode) -> Row:
    gpus = [gpu.usage for gpu in node.gpus]
    return {
        "node": node.name,
        "gpus": len(gpus),
        "free_gpus": sum(gpu.is_free for gpu in node.gpus),
        "not_serving_gpus": sum(not gpu.serves for gpu in node.gpus),
        "memory_used_mib": sum(gpu.memory_mib for gpu in gpus),
        "memory_mib": sum(gpu.device.memory_mib for gpu in gpus),
        "cores_used_percent": sum(gpu.cores for gpu in gpus),
        "cores_percent": sum(gpu.device.cores for gpu in gpus),
        "replicas_used": sum(gpu.replicas for gpu in gpus),
        "replicas": sum(gpu.device.replicas for gpu in gpus),
        "pods": len({held.pod for gpu in node.gpus for held in gpu.holders}),
        "simulated": node.is_simulated,
        "limits": node.usage.node.limits if node.usage is not None else None,
        "domains": domains(node) or None,
        "barred_by": barred_by(node) or None,
        "problem": node.problem or None,
    }


def barred_by(node: GpuNode) -> str:
    """Returns `cordoned, taint team=a:NoSchedule`: what keeps pods with GPUs away from the node."""
    taints = () if node.usage is None else node.usage.node.barred_by
    return ", ".join("cordoned" if taint == CORDON else f"taint {taint}" for taint in taints)


def domains(node: GpuNode) -> str:
    """Returns `rack r1, clique c`: what the node shares with others."""
    return "" if node.usage is None else ", ".join(map(" ".join, named_domains(node.usage.node)))


def _text(
    cluster: GpuCluster, nodes: Sequence[GpuNode], given: Level | None, readings: Readings | None, *, wide: bool
) -> RenderableType:
    level = given or _fitting_level(nodes)
    if not cluster.nodes:
        return Text("No node has GPUs of TopoGPU or HAMi: no Node has the annotation hami.io/node-nvidia-register.")
    if not nodes:
        return Text("No pod of this namespace holds a GPU.")
    columns = [
        Column(title=""),
        Column(title="memory"),
        Column(title="cores", rank=4),
        Column(title="replicas", rank=5),
        *([Column(title="in use", rank=2)] if readings is not None else []),
        Column(title="state", rank=6, wraps=wide),
        *([Column(title="asks", wraps=True)] if wide else []),
    ]
    rows = [
        _cells(line, readings=readings is not None, wide=wide)
        for node in nodes
        for line in _lines(node, level, readings, wide=wide)
    ]
    table = FittingTable(columns=columns, rows=rows, more="-o wide shows all.", everything=wide)
    less = (
        [] if given or level is Level.PODS else [Text(f"Shown by {level}, because there are many; see --level.", "dim")]
    )
    return Group(table, _sum(nodes), *less, *notes(cluster, readings))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """One line of the tree."""

    name: str | Text
    memory: str | Text = ""
    cores: str | Text = ""
    replicas: str = ""
    in_use: str = ""
    state: str | Text = ""
    asks: str = ""


def _cells(line: _Line, *, readings: bool, wide: bool) -> Sequence[str | Text]:
    used, asks = ([line.in_use] if readings else []), ([line.asks] if wide else [])
    return line.name, line.memory, line.cores, line.replicas, *used, line.state, *asks


def _lines(node: GpuNode, level: Level, readings: Readings | None, *, wide: bool) -> Iterator[_Line]:
    if node.problem:
        yield _Line(name=Text.assemble((node.name, "bold"), ("  no GPU offered", "red")))
        return
    free, lost = sum(gpu.is_free for gpu in node.gpus), sum(not gpu.serves for gpu in node.gpus)
    kind = "simulated GPU" if node.is_simulated else "GPU"
    closed = node.usage is not None and node.usage.node.closed
    parts = (
        counted(len(node.gpus), kind),
        f"{free} free",
        f"{lost} not serving" if lost and not closed else "",
        barred_by(node),
    )
    state = ", ".join(filter(None, parts))
    shared = f"  {domains(node)}" if wide and domains(node) else ""
    yield _amounts(Text(node.name, "bold"), node.gpus, readings, f"{state}{shared}")
    if level is Level.NODES:
        return
    for alike in _grouped(node.gpus, wide=wide or readings is not None):
        yield _gpu_line(alike, readings, wide=wide)
        if level is Level.PODS:
            yield from (_pod_line(alike[0], held, readings) for held in alike[0].holders)
    for pod in node.undecided:
        yield _Line(name=Text.assemble(f"    {pod}  ", ("undecided", "yellow")))


def _grouped(gpus: Iterable[GpuView], *, wide: bool) -> Iterator[Sequence[GpuView]]:
    """Joins consecutive free GPUs of one model to one line, unless all are wanted."""

    def key(gpu: GpuView) -> object:
        return gpu.device.type if gpu.is_free and not wide else gpu.device.uuid

    for _, alike in groupby(gpus, key=key):
        yield tuple(alike)


def _gpu_line(gpus: Sequence[GpuView], readings: Readings | None, *, wide: bool) -> _Line:
    device = gpus[0].device
    name = Text(f"  GPU {ranges([gpu.device.index for gpu in gpus])}")
    if gpus[0].state:
        name.append(f"  {gpus[0].state}", "red")
    state = Text(model(device.type))
    if gpus[0].is_free:
        state.append("  free", "green")
    if wide:
        state.append(f"  NUMA {device.numa}  {device.uuid}", "dim")
    return _amounts(name, gpus, readings, state)


def _pod_line(gpu: GpuView, held: HeldPart, readings: Readings | None) -> _Line:
    cores = f"{held.cores} %" if held.cores else "no limit"
    phase = "" if held.phase == "Running" else held.phase
    return _Line(
        name=f"    {held.pod}",
        memory=f"{_NO_BAR}{gib(held.memory_mib)}",
        cores=f"{_NO_BAR}{cores}",
        replicas=str(held.replicas),
        in_use=_used_words(_used_by(held, gpu, readings)),
        state=Text(phase, "yellow"),
        asks=held.asks,
    )


def _amounts(name: Text, gpus: Sequence[GpuView], readings: Readings | None, state: str | Text) -> _Line:
    """Returns a line for these GPUs together."""
    used, total = sum(gpu.usage.memory_mib for gpu in gpus), sum(gpu.device.memory_mib for gpu in gpus)
    cores, all_cores = sum(gpu.usage.cores for gpu in gpus), sum(gpu.device.cores for gpu in gpus)
    replicas, all_replicas = sum(gpu.usage.replicas for gpu in gpus), sum(gpu.device.replicas for gpu in gpus)
    return _Line(
        name=name,
        memory=Text.assemble(bar(used, total), f" {used / 1024:.1f}/{gib(total)}"),
        cores=_cores(gpus, cores, all_cores),
        replicas=f"{replicas}/{all_replicas}",
        in_use=_used_words(_together([_used_of(gpu, readings) for gpu in gpus])),
        state=state,
    )


def _cores(gpus: Sequence[GpuView], cores: int, all_cores: int) -> Text:
    """Returns no bar for a GPU whose pods may all use all of its cores: an empty one would look free."""
    unlimited = len(gpus) == 1 and any(not held.cores for held in gpus[0].holders)
    if unlimited and not cores:
        return Text(f"{_NO_BAR}no limit")
    return Text.assemble(bar(cores, all_cores), f" {cores}/{all_cores} %{' + no limit' if unlimited else ''}")


def _used_of(gpu: GpuView, readings: Readings | None) -> Used:
    return NOT_KNOWN if readings is None else readings.gpus.get(gpu.device.uuid, NOT_KNOWN)


def _together(found: Sequence[Used]) -> Used:
    """Returns the sum; not known unless all parts are."""
    memory = [each.memory_mib for each in found if each.memory_mib is not None]
    cores = [each.cores_percent for each in found if each.cores_percent is not None]
    return Used(
        memory_mib=sum(memory) if len(memory) == len(found) else None,
        cores_percent=sum(cores) if len(cores) == len(found) else None,
    )


def _used_words(used: Used) -> str:
    memory = "?" if used.memory_mib is None else gib(used.memory_mib)
    return f"{memory}, {'?' if used.cores_percent is None else used.cores_percent} %"


def notes(cluster: GpuCluster, readings: Readings | None) -> Iterator[Text]:
    """Yields what the reader has to know besides."""
    if cluster.waiting:
        are = "waits" if cluster.waiting == 1 else "wait"
        yield Text(f"{counted(cluster.waiting, 'pod')} {are} for GPUs: kubectl topogpu why -A")
    for each in cluster.nodes:
        if each.usage is not None and (words := set_aside_words(each.usage)):
            yield Text(f"! node {each.name}: {words}", "yellow")
    for pod, words in sorted(cluster.resizes.items()):
        yield Text(f"! pod {pod}: {words}", "yellow")
    for subject, problem in sorted(cluster.problems.items()):
        yield Text(f"! {subject}: {problem}", "yellow")
    for node, why in sorted(readings.missing.items()) if readings is not None else ():
        yield Text(f"! what is in use on node {node} is not known: {why}", "yellow")


def bar(used: int, total: int) -> Text:
    """Returns a bar of ten characters; neither a small used part nor a small free part disappears."""
    part = used / total if total else 0.0
    filled = min(max(round(part * _BAR), used > 0), _BAR if used >= total else _BAR - 1)
    colour = "red" if part >= 1 else "yellow" if part >= 0.8 else "green"
    return Text.assemble(("█" * filled, colour), ("░" * (_BAR - filled), "dim"))


def _sum(nodes: Sequence[GpuNode]) -> Text:
    gpus = [gpu for node in nodes for gpu in node.gpus]
    pods = {held.pod for gpu in gpus for held in gpu.holders}
    free = sum(gpu.is_free for gpu in gpus)
    memory = sum(gpu.usage.memory_mib for gpu in gpus), sum(gpu.device.memory_mib for gpu in gpus)
    share = f"{100 * memory[0] // memory[1]} % of the memory is taken" if memory[1] else "no memory"
    return Text(
        f"{counted(len(nodes), 'node')}, {counted(len(gpus), 'GPU')}, {free} free; {counted(len(pods), 'pod')}; {share}"
    )
