"""Containers, pods and nodes of tests: each argument is a fact that matters, everything else is usual."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from proto.annotations import keys
from proto.annotations.node_register import encode_register, encode_scores
from proto.devices import Device, DeviceUUID, PairScores
from proto.kubernetes.objects import (
    Condition,
    Container,
    ContainerStatus,
    Node,
    NodeInfo,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
    Resources,
)

Amount = str | int | float
Json = dict[str, Any]
_KUBERNETES_OWN = ("cpu", "memory", "pods")


def amounts(**by_name: Amount) -> dict[str, Amount]:
    """`amounts(gpu=1, cpu=2)` is `{"nvidia.com/gpu": 1, "cpu": 2}`."""
    return {
        name if name in _KUBERNETES_OWN else f"nvidia.com/{name.replace('_', '-')}": amount
        for name, amount in by_name.items()
    }


def container(name: str = "c", restart_policy: str = "", **limits: Amount) -> Container:
    """`container(gpu=1, gpumem=4000, gpucores=20)` has these limits."""
    return Container(name=name, restart_policy=restart_policy, resources=Resources(limits=amounts(**limits)))


def pod(
    *containers: Container,
    name: str = "p",
    namespace: str = "default",
    uid: str | None = None,
    inits: Sequence[Container] = (),
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    phase: str = "",
    statuses: Sequence[ContainerStatus] = (),
    **spec: Any,
) -> Pod:
    """A pod; `statuses` begin with those of the init containers, and `spec` names further fields of PodSpec."""
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace=namespace,
            uid=f"uid-{name}" if uid is None else uid,
            labels=dict(labels or {}),
            annotations=dict(annotations or {}),
        ),
        spec=PodSpec(init_containers=list(inits), containers=list(containers), **spec),
        status=PodStatus(
            phase=phase,
            init_container_statuses=list(statuses[: len(inits)]),
            container_statuses=list(statuses[len(inits) :]),
        ),
    )


def node(
    name: str = "n",
    devices: Sequence[Device] | None = None,
    scores: PairScores | None = None,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    resource_version: str = "",
    kubelet: str = "",
    runtime: str = "",
    ready: bool | None = None,
    **capacity: Amount,
) -> Node:
    """A node; of `devices`, its daemon has written the register, and kubelet offers their slots."""
    written = dict(annotations or {})
    if devices is not None:
        written[keys.NODE_REGISTER] = encode_register(devices)
        capacity.setdefault("gpu", str(sum(each.replicas for each in devices)))
        if scores is not None:
            written[keys.NODE_SCORE] = encode_scores(scores, [each.uuid for each in devices])
    offered = amounts(**capacity)
    return Node(
        metadata=ObjectMeta(
            name=name, labels=dict(labels or {}), annotations=written, resource_version=resource_version
        ),
        status=NodeStatus(
            capacity=offered,
            allocatable=offered,
            conditions=[] if ready is None else [Condition(type="Ready", status=str(ready))],
            node_info=NodeInfo(kubelet_version=kubelet, container_runtime_version=runtime),
        ),
    )


def as_json(found: Pod | Node) -> Json:
    """The object as it is written to the API server."""
    fields = {key: value for key, value in msgspec.to_builtins(found).items() if value}
    return {"apiVersion": "v1", "kind": type(found).__name__, **fields}


def pod_json(
    name: str,
    *,
    gpus: int = 1,
    memory_mib: int = 1000,
    cores: int = 0,
    scheduler_name: str = "topogpu-scheduler",
    **facts: Any,
) -> Json:
    """A pod of one container as JSON; without `memory_mib` it asks for whole GPUs. Other facts are those of `pod`."""
    asked = {"gpu": gpus, "gpumem": memory_mib, "gpucores": cores} if gpus else {}
    main = container("main", **{resource: str(amount) for resource, amount in asked.items() if amount})
    main.image = "work"
    return as_json(pod(main, name=name, scheduler_name=scheduler_name, **facts))


def node_json(
    name: str,
    *,
    gpus: int = 1,
    replicas: int = 10,
    memory_mib: int = 40960,
    allocation: str = "slots",
    ready: bool = True,
) -> Json:
    """A node with A100s as JSON, as it is written to the API server."""
    devices = [
        Device(
            uuid=DeviceUUID(f"GPU-{name}-{index}"),
            index=index,
            replicas=replicas,
            memory_mib=memory_mib,
            cores=100,
            type="NVIDIA A100-SXM4-40GB",
            numa=0,
            mode="hami-core",
            healthy=True,
        )
        for index in range(gpus)
    ]
    return as_json(node(name, devices, annotations={keys.NODE_ALLOCATION: allocation}, ready=ready))
