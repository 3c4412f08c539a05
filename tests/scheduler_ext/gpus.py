"""Small machines and pods for the extender's tests, spelled once."""

from collections.abc import Sequence

from proto.devices import Device, DeviceUUID, PairScores
from proto.kubernetes.objects import Pod
from scheduler_ext.cluster.registered import RegisteredNode
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage, Snapshot
from scheduler_ext.requests import GpuRequest, RequestSettings, read_request

GIB = 1024


def device(number: int, *, numa: int = 0, memory_mib: int = 40 * GIB, replicas: int = 10) -> Device:
    return Device(
        uuid=DeviceUUID(f"G{number}"),
        index=number,
        replicas=replicas,
        memory_mib=memory_mib,
        cores=100,
        type="NVIDIA A100-SXM4-40GB",
        numa=numa,
        mode="hami-core",
        healthy=True,
    )


def usage(name: str, gpus: Sequence[GpuUsage], scores: PairScores | None = None) -> NodeUsage:
    node = RegisteredNode(name=name, devices=tuple(gpu.device for gpu in gpus), pair_scores=scores or {})
    return NodeUsage(node=node, gpus=tuple(gpus))


def snapshot(*usages: NodeUsage) -> Snapshot:
    return Snapshot(nodes={each.node.name: each for each in usages})


def request(the_pod: Pod, settings: RequestSettings | None = None) -> GpuRequest:
    found = read_request(the_pod, settings or RequestSettings())
    assert found is not None
    return found
