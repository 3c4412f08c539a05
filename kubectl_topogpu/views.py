"""The tables of `top -i`: nodes, GPUs, pods and waiting pods, searched, narrowed and sorted. No IO."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rich.text import Text

from kubectl_topogpu.cluster import GpuCluster, GpuNode
from kubectl_topogpu.report import Row, Value, rank
from kubectl_topogpu.top import bar, gpu_row, node_row, pod_rows
from kubectl_topogpu.used import Readings
from program.words import counted, gib, printable

MOST_ROWS = 500
"""Rows that are drawn: a table of thousands is slow, and too long to read. Search and filters see all."""


class View(StrEnum):
    NODES = "nodes"
    GPUS = "gpus"
    PODS = "pods"
    WAITING = "waiting"


class Narrowing(StrEnum):
    """The rows that are kept."""

    ALL = "all"
    HELD = "held"
    FREE = "free"
    OUT = "out of service"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The cluster as one reading has found it."""

    cluster: GpuCluster
    nodes: Sequence[GpuNode]
    readings: Readings | None = None
    waiting: Sequence[Row] = ()
    began: float = 0.0
    """The time at which the reading began: nothing that is shown is newer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewChoice:
    """The wishes of the person at the terminal."""

    view: View = View.NODES
    search: str = ""
    narrowing: Narrowing = Narrowing.ALL
    node: str = ""
    """The only node whose GPUs and pods are shown; empty for all."""
    order: str = ""
    reverse: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewColumn:
    key: str
    title: str
    cell: Callable[[Row], str | Text]


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewTable:
    columns: Sequence[ViewColumn]
    rows: Sequence[tuple[str, Row]]
    """Each row with a name that stays the same from reading to reading."""
    left_out: int = 0
    """Rows that are not drawn."""


def table(seen: Observed, choice: ViewChoice) -> ViewTable:
    """Returns the rows that the person wants to see."""
    columns = columns_of(choice.view, used=seen.readings is not None)
    kept = [
        (name, row)
        for name, row in _rows(seen, choice.view)
        if _is_kept(row, choice) and _is_found(row, columns, choice.search)
    ]
    order = choice.order if choice.order in {column.key for column in columns} else ""
    if order:
        kept.sort(key=lambda each: rank(each[1].get(order)), reverse=choice.reverse)
    elif choice.reverse:
        kept.reverse()
    return ViewTable(columns=columns, rows=kept[:MOST_ROWS], left_out=max(len(kept) - MOST_ROWS, 0))


def summary(seen: Observed) -> str:
    """Returns the cluster in one line."""
    gpus = [gpu for node in seen.nodes for gpu in node.gpus]
    free, out = sum(gpu.is_free for gpu in gpus), sum(not gpu.serves for gpu in gpus)
    held, memory = sum(gpu.usage.memory_mib for gpu in gpus), sum(gpu.device.memory_mib for gpu in gpus)
    parts = [counted(len(seen.nodes), "node"), counted(len(gpus), "GPU"), f"{free} free"]
    parts += [f"{out} out of service"] * bool(out)
    parts += [f"{100 * held // memory} % of the memory held"] * bool(memory)
    parts += [f"{counted(seen.cluster.waiting, 'pod')} waiting"] * bool(seen.cluster.waiting)
    return ", ".join(parts)


def age(seen: Observed | None, now: float, failure: str, every: float) -> str:
    """Returns how old is what is shown. Data that is older than two readings is called old."""
    if seen is None:
        return f"not read yet: {failure}" if failure else "reading the cluster …"
    seconds = max(now - seen.began, 0.0)
    if failure:
        return f"OLD: read {seconds:.0f} s ago, and not since: {failure}"
    return f"{'OLD: ' if seconds > 2 * every + 1 else ''}read {seconds:.0f} s ago"


def columns_of(view: View, *, used: bool) -> Sequence[ViewColumn]:
    """`used` adds what processes use."""
    return (*_COLUMNS[view], *(_IN_USE if used and view in (View.GPUS, View.PODS) else ()))


def _rows(seen: Observed, view: View) -> Iterable[tuple[str, Row]]:
    if view is View.NODES:
        yield from ((node.name, node_row(node)) for node in seen.nodes)
    elif view is View.WAITING:
        yield from ((str(row["pod"]), row) for row in seen.waiting)
    else:
        for node in seen.nodes:
            for gpu in node.gpus:
                if view is View.GPUS:
                    yield f"{node.name}/{gpu.device.index}", gpu_row(node, gpu, seen.readings)
                    continue
                for row in pod_rows(node, gpu, seen.readings):
                    if row["pod"] is not None:
                        yield f"{row['pod']} {gpu.device.uuid}", row


def _is_kept(row: Row, choice: ViewChoice) -> bool:
    if choice.view is View.WAITING:
        return True
    if choice.node and choice.view is not View.NODES and row["node"] != choice.node:
        return False
    match choice.narrowing:
        case Narrowing.HELD:
            return bool(row.get("pods") or row.get("pod"))
        case Narrowing.FREE:
            return bool(row["free_gpus"]) if "free_gpus" in row else not row.get("pods", 1) and row["state"] == "ok"
        case Narrowing.OUT:
            return bool(row.get("not_serving_gpus") or row.get("problem")) or row.get("state", "ok") != "ok"
    return True


def _is_found(row: Row, columns: Sequence[ViewColumn], search: str) -> bool:
    """Each word has to occur in a cell."""
    if not search:
        return True
    text = " ".join(str(column.cell(row)) for column in columns).lower()
    return all(word in text for word in search.lower().split())


def _word(key: str, title: str) -> ViewColumn:
    return ViewColumn(
        key=key, title=title, cell=lambda row: printable(str(row.get(key) if row.get(key) is not None else ""))
    )


def _number(value: Value) -> int:
    return int(value or 0)


def _bar(key: str, title: str, total: str, *, memory: bool) -> ViewColumn:
    def cell(row: Row) -> Text:
        used, all_ = _number(row[key]), _number(row[total])
        words = f"{used / 1024:.1f}/{gib(all_)}" if memory else f"{used}/{all_} %"
        return Text.assemble(bar(used, all_), f" {words}")

    return ViewColumn(key=key, title=title, cell=cell)


def _state(row: Row) -> Text:
    if row.get("problem"):
        return Text(f"no GPU offered: {printable(str(row['problem']))}", "red")
    lost = _number(row.get("not_serving_gpus"))
    parts = (f"{counted(lost, 'GPU')} out of service" if lost else "", printable(str(row.get("barred_by") or "")))
    return Text(", ".join(filter(None, parts)), "red")


def _gpu_state(row: Row) -> Text:
    state = str(row["state"])
    return Text("free" if not row["pods"] else "", "green") if state == "ok" else Text(printable(state), "red")


def _in_use(row: Row) -> str:
    memory, cores = row.get("memory_in_use_mib"), row.get("cores_in_use_percent")
    return f"{'?' if memory is None else gib(_number(memory))}, {'?' if cores is None else cores} %"


_IN_USE = (ViewColumn(key="memory_in_use_mib", title="in use", cell=_in_use),)
_HELD = (
    _bar("memory_used_mib", "memory", "memory_mib", memory=True),
    _bar("cores_used_percent", "cores", "cores_percent", memory=False),
    ViewColumn(key="replicas_used", title="replicas", cell=lambda row: f"{row['replicas_used']}/{row['replicas']}"),
    _word("pods", "pods"),
)
_COLUMNS: dict[View, Sequence[ViewColumn]] = {
    View.NODES: (
        _word("node", "node"),
        _word("gpus", "GPUs"),
        _word("free_gpus", "free"),
        *_HELD,
        ViewColumn(key="not_serving_gpus", title="state", cell=_state),
    ),
    View.GPUS: (
        _word("node", "node"),
        _word("gpu", "GPU"),
        _word("model", "model"),
        *_HELD,
        ViewColumn(key="state", title="state", cell=_gpu_state),
    ),
    View.PODS: (
        _word("pod", "pod"),
        _word("phase", "phase"),
        _word("node", "node"),
        _word("gpu", "GPU"),
        _word("model", "model"),
        ViewColumn(key="memory_mib", title="memory", cell=lambda row: gib(_number(row["memory_mib"]))),
        ViewColumn(
            key="cores_percent",
            title="cores",
            cell=lambda row: f"{row['cores_percent']} %" if row["cores_percent"] else "no limit",
        ),
    ),
    View.WAITING: (_word("pod", "pod"), _word("asks", "asks for"), _word("why", "why"), _word("reasons", "nodes")),
}
