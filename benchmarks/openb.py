"""Reads a folder of Alibaba's trace cluster-trace-gpu-v2023 ("openb") as Nodes and Pods of Kubernetes.

The trace is not part of the project: fetch `data/csv` of hkust-adsl/kubernetes-scheduler-simulator. A GPU has 16 000
MiB here, so that a pod's `gpu_milli` is a whole number of MiB. Cores are not limited.
"""

import csv
from collections.abc import Sequence
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
        """Thousandths of a GPU in total."""
        return self.gpus * self.milli

    def pod(self, uid: str) -> Pod:
        """A pod that waits to be placed."""
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
    """The pods of `openb_pod_list_<workload>.csv`, in its order. Raises TraceError."""
    arrivals = []
    for row in _rows(folder / f"openb_pod_list_{workload}.csv"):
        gpus, at = int(row["num_gpu"]), float(row["creation_time"] or 0)
        asked = Asked(
            host=HostAmount(int(row["cpu_milli"]), int(row["memory_mib"])),
            gpus=gpus,
            milli=int(row["gpu_milli"]) if gpus else 0,
            models=",".join(sorted(set((row.get("gpu_spec") or "").split("|")))),
        )
        arrivals.append(Arrival(asked=asked, at=at, lasts=float(row["deletion_time"] or 0) - at))
    return arrivals


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            return list(csv.DictReader(lines))
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}; name the folder that holds the trace") from error


def _node(row: dict[str, str]) -> Node:
    name = row["sn"]
    devices = [
        Device(
            uuid=DeviceUUID(f"{name}-{number}"),
            index=number,
            slots=SHARERS,
            memory_mib=GPU_MIB,
            cores=100,
            type=f"NVIDIA {row['model']}",
            numa=0,
            mode="hami-core",
            healthy=True,
        )
        for number in range(int(row["gpu"]))
    ]
    return Node(
        metadata=ObjectMeta(name=name, annotations={keys.NODE_REGISTER: encode_register(devices)}),
        status=NodeStatus(allocatable={"cpu": f"{row['cpu_milli']}m", "memory": f"{row['memory_mib']}Mi"}),
    )
