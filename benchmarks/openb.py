"""Reads a folder of Alibaba's trace cluster-trace-gpu-v2023 ("openb") as Nodes and Pods of Kubernetes.

The trace is not part of the project: fetch `data/csv` of hkust-adsl/kubernetes-scheduler-simulator. A GPU has 16 000
MiB here, so that a pod's `gpu_milli` is a whole number of MiB. Cores are not limited.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from proto.annotations import keys
from proto.annotations.node_register import encode_register
from proto.devices import Device, DeviceUUID
from proto.kubernetes.objects import Container, Node, NodeStatus, ObjectMeta, Pod, PodSpec, Resources
from proto.kubernetes.requests import HostAmount

GPU_MIB = 16_000
SHARERS = 100
NODES = "openb_node_list_gpu_node.csv"
OPTIONAL = ("gpu_spec", "creation_time", "deletion_time")
"""Columns that the lists derived from `default` lack."""


class TraceError(Exception):
    """A file of the trace is missing or not as expected. The message is one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One kind of pod. It takes `milli` of each of `gpus` GPUs. `models` is a comma list, empty for any."""

    host: HostAmount
    gpus: int
    milli: int
    models: str

    @property
    def amount(self) -> int:
        """Returns the thousandths of a GPU in total."""
        return self.gpus * self.milli

    def pod(self, uid: str) -> Pod:
        """Returns a pod that waits to be placed."""
        resources: dict[str, str | int | float] = {
            "cpu": f"{self.host.cpu_milli}m",
            "memory": f"{self.host.memory_mib}Mi",
        }
        if self.gpus:
            resources |= {keys.RESOURCE_COUNT: self.gpus, keys.RESOURCE_MEMORY: self.milli * GPU_MIB // 1000}
        annotations = {keys.USE_GPU_TYPE: self.models} if self.models else {}
        return Pod(
            metadata=ObjectMeta(name=uid, namespace="openb", uid=uid, annotations=annotations),
            spec=PodSpec(containers=[Container(name="c", resources=Resources(limits=resources))]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A pod of the trace; seconds from its beginning."""

    asked: Asked
    at: float
    lasts: float


def read_nodes(folder: Path) -> Sequence[Node]:
    """Raises TraceError."""
    return [_node(row) for row in _rows(folder / NODES)]


def read_pods(folder: Path, workload: str) -> Sequence[Arrival]:
    """Returns the pods of `openb_pod_list_<workload>.csv`, in its order. Raises TraceError."""
    arrivals = []
    for row in _rows(folder / f"openb_pod_list_{workload}.csv"):
        gpus, at = row.number("num_gpu"), row.number("creation_time")
        asked = Asked(
            host=HostAmount(row.number("cpu_milli"), row.number("memory_mib")),
            gpus=gpus,
            milli=row.number("gpu_milli") if gpus else 0,
            models=",".join(sorted(set(row.text("gpu_spec").split("|")))),
        )
        arrivals.append(Arrival(asked=asked, at=at, lasts=row.number("deletion_time") - at))
    return arrivals


@dataclass(frozen=True, slots=True)
class _Row:
    """A line of a file; `where` names it."""

    where: str
    cells: Mapping[str, str | None]

    def text(self, name: str) -> str:
        """Empty for one of the columns that only some lists have. Raises TraceError."""
        found = self.cells.get(name, "" if name in OPTIONAL else None)
        if found is None:
            raise TraceError(f"{self.where}: {name} is missing")
        return found

    def number(self, name: str) -> int:
        """Returns 0 if nothing is written. Raises TraceError."""
        written = self.text(name)
        try:
            return int(float(written or 0))
        except (ValueError, OverflowError):
            raise TraceError(f"{self.where}: {name} is {written!r}, no whole number") from None


def _rows(path: Path) -> list[_Row]:
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            rows = csv.DictReader(lines)
            return [_Row(f"{path.name}, line {rows.line_num}", row) for row in rows]
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}; name the folder that holds the trace") from error


def _node(row: _Row) -> Node:
    name, model = row.text("sn"), row.text("model")
    devices = [
        Device(
            uuid=DeviceUUID(f"{name}-{number}"),
            index=number,
            replicas=SHARERS,
            memory_mib=GPU_MIB,
            cores=100,
            type=f"NVIDIA {model}",
            numa=0,
            mode="hami-core",
            healthy=True,
        )
        for number in range(row.number("gpu"))
    ]
    cpu, memory = f"{row.number('cpu_milli')}m", f"{row.number('memory_mib')}Mi"
    return Node(
        metadata=ObjectMeta(name=name, annotations={keys.NODE_REGISTER: encode_register(devices)}),
        status=NodeStatus(allocatable={"cpu": cpu, "memory": memory, keys.RESOURCE_COUNT: SHARERS * len(devices)}),
    )
