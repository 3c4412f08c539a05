"""Pods and nodes from CSV files: our own columns, and those of Alibaba's trace cluster-trace-gpu-v2023 ("openb")."""

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeVar

from proto.annotations import keys
from proto.devices import Device, DeviceUUID
from proto.kubernetes.objects import Container, ObjectMeta, Pod, PodSpec, Resources
from scheduler_ext.requests import ResourceNames
from simulation.plan.machines import node_of
from simulation.plan.objects import Arrival, Described, arrival_of
from simulation.plan.question import quantities

T = TypeVar("T")

OPENB_GPU_MIB = 16_000
"""The trace does not name the memory of its GPUs. Its pods request thousandths of a GPU."""
SHARERS = 100
"""Pods on one GPU of a node in a CSV file."""
MOST_ROWS = 200_000
MOST_GPUS = 64
LONGEST_SECONDS = 1e9


class TraceError(ValueError):
    """The message names the file, the row and the column, and what is wrong there."""

    def __init__(self, where: str, row: int | None, column: str, problem: str) -> None:
        place = ", ".join(filter(None, (f"row {row}" if row else "", f"column {column}" if column else "")))
        super().__init__(f"{where}: {place}: {problem}" if place else f"{where}: {problem}")


@dataclass(frozen=True, slots=True)
class _TraceRow:
    where: str
    number: int
    """The line as an editor counts; the header is 1."""
    cells: Mapping[str, str]

    def text(self, column: str) -> str:
        return (self.cells.get(column) or "").strip()

    def whole(self, column: str, most: int = 2**31 - 1) -> int:
        """Returns 0 for an empty cell."""
        return self._read(column, int, "a whole number", lambda number: 0 <= number <= most) or 0

    def seconds(self, column: str) -> float | None:
        """Returns None for an empty cell."""
        return self._read(column, float, "a number of seconds", lambda number: 0 <= number <= LONGEST_SECONDS)

    def problem(self, column: str, problem: str) -> TraceError:
        return TraceError(self.where, self.number, column, problem)

    def _read(self, column: str, kind: Callable[[str], T], what: str, right: Callable[[T], bool]) -> T | None:
        text = self.text(column)
        if not text:
            return None
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not right(value):
            raise self.problem(column, f"expected {what}, found {text[:40]!r}")
        return value


def is_openb(header: Sequence[str]) -> bool:
    return "gpu_milli" in header


POD_COLUMNS = (
    *("name", "namespace", "cpu_milli", "memory_mib", "gpus", "gpu_memory_mib", "gpu_memory_percent", "gpu_cores"),
    *("gpu_types", "gpu_policy", "node_policy", "at_seconds", "lasts_seconds"),
)
"""All but `name` and `gpus` may be left out."""
OPENB_POD_COLUMNS = (
    *("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "qos", "pod_phase"),
    *("creation_time", "deletion_time", "scheduled_time"),
)
NODE_COLUMNS = ("sn", "name", "cpu_milli", "memory_mib", "gpu", "model", "gpu_memory_mib")


def read_pods(text: str, where: str, names: ResourceNames) -> list[Arrival]:
    """Returns the pods in the order of the file. Raises TraceError."""
    header, rows = _rows(text, where)
    if is_openb(header):
        _check(header, where, ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"), OPENB_POD_COLUMNS)
        return [_openb_pod(row, names) for row in rows]
    _check(header, where, ("name", "gpus"), POD_COLUMNS)
    return [_pod(row, names) for row in rows]


def read_nodes(text: str, where: str) -> Described:
    """Raises TraceError."""
    header, rows = _rows(text, where)
    own = "sn" if "sn" in header else "name"
    _check(header, where, (own, "cpu_milli", "memory_mib", "gpu", "model"), NODE_COLUMNS)
    found = {}
    for row in rows:
        name = row.text(own)
        if not name or name in found:
            raise row.problem(own, f"{name!r} is listed twice" if name else "expected the name of a node")
        devices = _devices(name, row)
        found[name] = node_of(name, devices, {}, cpu_milli=row.whole("cpu_milli"), memory_mib=row.whole("memory_mib"))
    if not found:
        raise TraceError(where, None, "", "lists no node")
    return Described(nodes=tuple(found.values()))


def _devices(name: str, row: _TraceRow) -> list[Device]:
    return [
        Device(
            uuid=DeviceUUID(f"{name}-{number}"),
            index=number,
            replicas=SHARERS,
            memory_mib=row.whole("gpu_memory_mib") or OPENB_GPU_MIB,
            cores=100,
            type=f"NVIDIA {row.text('model')}",
            numa=0,
            mode="hami-core",
            healthy=True,
        )
        for number in range(row.whole("gpu", MOST_GPUS))
    ]


def _openb_pod(row: _TraceRow, names: ResourceNames) -> Arrival:
    gpus, milli = row.whole("num_gpu", MOST_GPUS), row.whole("gpu_milli", 1000)
    if gpus and not milli:
        raise row.problem("gpu_milli", f"expected 1 to 1000 for a pod with {gpus} GPUs")
    at, end = row.seconds("creation_time") or 0.0, row.seconds("deletion_time")
    amounts = {names.count: gpus, names.memory_percentage: -(-milli // 10) if gpus else 0}
    types = ",".join(sorted(set(filter(None, row.text("gpu_spec").split("|")))))
    lasts = inf if end is None else max(end - at, 0.0)
    return _arrival(row, amounts, {keys.USE_GPU_TYPE: types}, at=at, lasts=lasts)


def _pod(row: _TraceRow, names: ResourceNames) -> Arrival:
    amounts = {
        names.count: row.whole("gpus"),
        names.memory: row.whole("gpu_memory_mib"),
        names.memory_percentage: row.whole("gpu_memory_percent", 100),
        names.cores: row.whole("gpu_cores", 100),
    }
    annotations = {
        keys.USE_GPU_TYPE: row.text("gpu_types"),
        keys.GPU_POLICY: row.text("gpu_policy"),
        keys.NODE_POLICY: row.text("node_policy"),
    }
    lasts = row.seconds("lasts_seconds")
    return _arrival(
        row, amounts, annotations, at=row.seconds("at_seconds") or 0.0, lasts=inf if lasts is None else lasts
    )


def _arrival(
    row: _TraceRow, amounts: Mapping[str, int], annotations: Mapping[str, str], *, at: float, lasts: float
) -> Arrival:
    name = row.text("name")
    if not name:
        raise row.problem("name", "expected the name of a pod")
    limits = quantities(amounts)
    cpu, memory = row.whole("cpu_milli"), row.whole("memory_mib")
    limits |= ({"cpu": f"{cpu}m"} if cpu else {}) | ({"memory": f"{memory}Mi"} if memory else {})
    written = {key: value for key, value in annotations.items() if value}
    pod = Pod(
        metadata=ObjectMeta(name=name, namespace=row.text("namespace") or "default", annotations=written),
        spec=PodSpec(containers=[Container(name="main", resources=Resources(limits=limits))]),
    )
    return arrival_of(pod, at=at, lasts=lasts)


def _rows(text: str, where: str) -> tuple[Sequence[str], Iterator[_TraceRow]]:
    # `strict` refuses a quote that is never closed; the rest of the file would be one cell.
    lines = csv.reader(io.StringIO(text), strict=True)
    try:
        header = [cell.strip().lstrip("\ufeff") for cell in next(lines, [])]
    except csv.Error as error:
        raise TraceError(where, 1, "", str(error)) from error
    if not any(header):
        raise TraceError(where, None, "", "is empty; the first line names the columns")
    return header, _read_rows(lines, header, where)


def _read_rows(lines: Iterator[list[str]], header: Sequence[str], where: str) -> Iterator[_TraceRow]:
    number = 1
    try:
        for number, cells in enumerate(lines, 2):
            if not any(cells):
                continue
            if len(cells) > len(header):
                raise TraceError(where, number, "", f"has {len(cells)} cells, and the first line names {len(header)}")
            if number > MOST_ROWS:
                raise TraceError(where, number, "", f"a plan reads at most {MOST_ROWS} rows")
            yield _TraceRow(where, number, dict(zip(header, cells, strict=False)))
    except csv.Error as error:
        raise TraceError(where, number + 1, "", str(error)) from error


def _check(header: Sequence[str], where: str, needed: Sequence[str], known: Sequence[str]) -> None:
    missing = [column for column in needed if column not in header]
    if missing:
        raise TraceError(where, 1, missing[0], f"is missing; the columns are {', '.join(known)}")
    # A column that is misspelt would change what the pods request.
    odd = next((column for column in header if column not in known or header.count(column) > 1), None)
    if odd is not None:
        problem = "is there twice" if odd in known else f"is unknown; the columns are {', '.join(known)}"
        raise TraceError(where, 1, odd or "without a name", problem)
