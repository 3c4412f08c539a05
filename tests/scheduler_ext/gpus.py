"""Small machines and pods for the extender's tests, spelled once."""

from collections.abc import Mapping, Sequence

from proto.annotations import keys
from proto.annotations.node_register import encode_register
from proto.annotations.node_score import encode_scores
from proto.devices import Device, DeviceUUID, PairScores
from proto.kubernetes.objects import Container, Node, NodeStatus, ObjectMeta, Pod, PodSpec, PodStatus, Resources
from scheduler_ext.cluster.registered import RegisteredNode
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage, Snapshot
from scheduler_ext.requests import GpuRequest, RequestSettings, read_request

GIB = 1024


def device(number: int, *, numa: int = 0, memory_mib: int = 40 * GIB, slots: int = 10) -> Device:
    return Device(
        uuid=DeviceUUID(f"G{number}"),
        index=number,
        slots=slots,
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


def node(name: str, devices: Sequence[Device], scores: PairScores | None = None) -> Node:
    annotations = {keys.NODE_REGISTER: encode_register(devices)}
    if scores is not None:
        annotations[keys.NODE_SCORE] = encode_scores(scores, [each.uuid for each in devices])
    offered: dict[str, str | int | float] = {keys.RESOURCE_COUNT: sum(each.slots for each in devices)}
    return Node(metadata=ObjectMeta(name=name, annotations=annotations), status=NodeStatus(allocatable=offered))


def container(name: str = "c", restart_policy: str = "", **limits: int | str) -> Container:
    """`container(gpu=1, gpumem=4000, gpucores=20)`."""
    spelled: dict[str, str | int | float] = {
        "nvidia.com/" + key.replace("_", "-"): amount for key, amount in limits.items()
    }
    return Container(name=name, restart_policy=restart_policy, resources=Resources(limits=spelled))


def pod(
    *containers: Container,
    name: str = "p",
    inits: Sequence[Container] = (),
    annotations: Mapping[str, str] | None = None,
    node_name: str = "",
    phase: str = "",
) -> Pod:
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-{name}", annotations=dict(annotations or {})),
        spec=PodSpec(node_name=node_name, init_containers=list(inits), containers=list(containers)),
        status=PodStatus(phase=phase),
    )


def request(the_pod: Pod, settings: RequestSettings | None = None) -> GpuRequest:
    found = read_request(the_pod, settings or RequestSettings())
    assert found is not None
    return found
