"""Pods of which each node has to be judged by itself, and that takes long."""

from dataclasses import replace
from math import inf

from proto.annotations import keys
from proto.devices import DeviceShare, DeviceUUID
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.requests import GpuRequest
from tests.builders import container, pod
from tests.builders import node as gpu_node
from tests.scheduler_ext.gpus import device, request


def different_nodes() -> tuple[Cluster, list[str]]:
    """Nothing known of one says anything about another."""
    gpus = [device(number, memory_mib=50_000, replicas=30) for number in range(8)]
    cluster = Cluster()
    names = [f"n{number}" for number in range(60)]
    cluster.ledger.replace_nodes(
        gpu_node(name, [replace(gpu, uuid=DeviceUUID(f"{name}-{gpu.uuid}")) for gpu in gpus]) for name in names
    )
    for number, name in enumerate(names):
        held = (DeviceShare(uuid=DeviceUUID(f"{name}-G0"), memory_mib=100 + number, cores=0),)
        cluster.ledger.reserve(name, pod(container(), name=name), name, (held,), until=inf)
    return cluster, names


def costly(last_mib: int, name: str = "p") -> GpuRequest:
    """The last container wants so much of each of eight GPUs."""
    others = [container(f"c{number}", gpu=1, gpumem=1000 + number) for number in range(15)]
    last = container("last", gpu=8, gpumem=last_mib)
    return request(pod(*others, last, annotations={keys.GPU_POLICY: "topology-aware"}, name=name))
