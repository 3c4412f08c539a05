"""`top`: nodes, their GPUs, and the pods that hold them. No IO."""

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kubectl_topogpu.cluster import Cluster, Gpu, GpuNode, Held
from kubectl_topogpu.report import Report, Row
from program.words import counted, gib, model, ranges

_BAR = 10


class Level(StrEnum):
    NODES = "nodes"
    GPUS = "gpus"
    PODS = "pods"


def top(cluster: Cluster, nodes: Sequence[GpuNode], level: Level) -> Report:
    """Returns a row for each node, GPU, or pod on a GPU; a GPU without pods has a row at every level."""
    rows = {
        Level.NODES: lambda: [_node_row(node) for node in nodes],
        Level.GPUS: lambda: [_gpu_row(node, gpu) for node in nodes for gpu in node.gpus],
        Level.PODS: lambda: [row for node in nodes for gpu in node.gpus for row in pod_rows(node, gpu)],
    }[level]()
    return Report(rows=rows, text=lambda wide: _text(cluster, nodes, level, wide=wide))


def pod_rows(node: GpuNode, gpu: Gpu) -> Iterator[Row]:
    where: Row = {
        "node": node.name,
        "gpu": gpu.device.index,
        "uuid": str(gpu.device.uuid),
        "model": model(gpu.device.type),
    }
    if not gpu.holders:
        yield {**where, "pod": None, "phase": gpu.state or "free", "memory_mib": 0, "cores_percent": 0, "slots": 0}
    for held in gpu.holders:
        yield {
            **where,
            "pod": held.pod,
            "phase": held.phase,
            "memory_mib": held.memory_mib,
            "cores_percent": held.cores,
            "slots": held.slots,
        }


def _gpu_row(node: GpuNode, gpu: Gpu) -> Row:
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
        "slots_used": usage.slots,
        "slots": device.slots,
        "pods": len(gpu.holders),
    }


def _node_row(node: GpuNode) -> Row:
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
        "slots_used": sum(gpu.slots for gpu in gpus),
        "slots": sum(gpu.device.slots for gpu in gpus),
        "pods": len({held.pod for gpu in node.gpus for held in gpu.holders}),
        "problem": node.problem or None,
    }


def _text(cluster: Cluster, nodes: Sequence[GpuNode], level: Level, *, wide: bool) -> RenderableType:
    if not nodes:
        return Text("No node has GPUs of TopoGPU or HAMi: no Node has the annotation hami.io/node-nvidia-register.")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=True, header_style="bold")
    for title in ("", "memory", "", "cores", "", "slots"):
        table.add_column(title, no_wrap=True)
    table.add_column("", overflow="fold")
    for node in nodes:
        _add_node(table, node)
        if level is Level.NODES:
            continue
        for alike in _grouped(node.gpus, wide=wide):
            _add_gpus(table, alike, wide=wide)
            if level is Level.PODS:
                for held in alike[0].holders:
                    _add_pod(table, held)
        for pod in node.undecided:
            table.add_row(
                Text(f"    {pod}", "yellow"), "", "", "", "", "", Text("has GPUs without a decision", "yellow")
            )
    notes = [Text(f"! {subject}: {problem}", "yellow") for subject, problem in sorted(cluster.problems.items())]
    return Group(table, _sum(nodes), *notes)


def _add_node(table: Table, node: GpuNode) -> None:
    if node.problem:
        table.add_row(Text(node.name, "bold"), "", "", "", "", "", Text(node.problem, "red"))
        return
    row = _node_row(node)
    free, lost = row["free_gpus"], row["not_serving_gpus"]
    about = f"{counted(len(node.gpus), 'GPU')}, {free} free" + (f", {lost} not serving" if lost else "")
    table.add_row(
        Text(node.name, "bold"),
        *_amounts(list(node.gpus)),
        about,
    )


def _grouped(gpus: Iterable[Gpu], *, wide: bool) -> Iterator[Sequence[Gpu]]:
    """Joins consecutive free GPUs of one model to one line, unless all are wanted."""

    def key(gpu: Gpu) -> object:
        return gpu.device.type if gpu.is_free and not wide else gpu.device.uuid

    for _, alike in groupby(gpus, key=key):
        yield tuple(alike)


def _add_gpus(table: Table, gpus: Sequence[Gpu], *, wide: bool) -> None:
    device = gpus[0].device
    name = f"  GPU {ranges([gpu.device.index for gpu in gpus])}"
    about = Text(model(device.type))
    if gpus[0].state:
        about.append(f"  {gpus[0].state}", "red")
    elif gpus[0].is_free:
        about.append("  free", "green")
    if wide:
        about.append(f"  NUMA {device.numa}  {device.uuid}", "dim")
    table.add_row(name, *_amounts(gpus), about)


def _add_pod(table: Table, held: Held) -> None:
    cores = f"{held.cores} %" if held.cores else "no limit"
    phase = "" if held.phase == "Running" else held.phase
    table.add_row(f"    {held.pod}", gib(held.memory_mib), "", cores, "", str(held.slots), Text(phase, "yellow"))


def _amounts(gpus: Sequence[Gpu]) -> tuple[RenderableType, ...]:
    used, total = sum(gpu.usage.memory_mib for gpu in gpus), sum(gpu.device.memory_mib for gpu in gpus)
    cores, all_cores = sum(gpu.usage.cores for gpu in gpus), sum(gpu.device.cores for gpu in gpus)
    slots, all_slots = sum(gpu.usage.slots for gpu in gpus), sum(gpu.device.slots for gpu in gpus)
    return (
        bar(used, total),
        f"{used / 1024:.1f}/{gib(total)}",
        bar(cores, all_cores),
        f"{cores}/{all_cores} %",
        f"{slots}/{all_slots}",
    )


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
