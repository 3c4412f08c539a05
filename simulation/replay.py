"""Takes decisions one after the other: JSON lines enter, one answer per line leaves.

A line holds either a whole cluster (`state`, `pod`, `node_names`, `config`) or the GPUs of one node (`devices`,
`containers`, …). Both have the form in which HAMi's own decisions were recorded, and so do the answers.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field

from proto.annotations.node_register import decode_cordon
from proto.annotations.pod_devices import encode_pod_devices
from proto.decoding import decoded
from proto.devices import Device, DeviceUUID, PairScores
from proto.kubernetes.objects import Container, ObjectMeta, Pod, PodSpec, Resources
from scheduler_ext.cli.answers import scores_document, shortest
from scheduler_ext.cli.state import StateError, read_state, typed
from scheduler_ext.cluster.accounting import effective
from scheduler_ext.cluster.registered import RegisteredNode
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage, Quota, Snapshot
from scheduler_ext.decide.decision import Decision, decide
from scheduler_ext.decide.score import UNSCORED
from scheduler_ext.policies import PolicyError, parse_gpu_policy, parse_node_policy
from scheduler_ext.requests import GpuRequest, RequestError, RequestSettings, pod_key, read_request

Document = dict[str, Any]
Natural = Annotated[int, Meta(ge=0, le=2**31 - 1)]

RECORDED_WITH = RequestSettings()
"""Single nodes were recorded with HAMi's defaults."""
NODE = "n1"
NAMESPACE = "default"
NOT_ASKED = "NOREQ"
"""The recorded reason for a pod that requests no GPU."""
REFUSED = "ERR"
"""The recorded reason for a pod whose request cannot be read."""


class GpuRow(Struct, kw_only=True):
    """One GPU of a single node, and what is in use of it."""

    id: str
    memory: Natural
    count: Natural
    cores: Natural
    type: str
    numa: int = 0
    mode: str = "hami-core"
    health: bool = False
    used: Natural = 0
    used_memory: Natural = 0
    used_cores: Natural = 0


class SingleNode(Struct, kw_only=True):
    """A node and the limits of a pod's containers. `quota_…` is what its namespace may hold, with nothing used yet."""

    devices: list[GpuRow]
    containers: list[dict[str, str | int | float]]
    pair_scores: dict[str, dict[str, int]] = {}
    annotations: dict[str, str] = {}
    cordon: str = ""
    quota_memory: Natural | None = None
    quota_cores: Natural | None = None


class Config(Struct, rename="camel", kw_only=True):
    """What differs from the cluster's defaults; None means the default."""

    node_scheduler_policy: str | None = None
    gpu_scheduler_policy: str | None = None
    default_memory: Natural | None = None
    default_cores: Natural | None = None
    memory_factor: Natural | None = None


class RecordedCluster(Struct, kw_only=True):
    """A cluster and a pod. Without `node_names` all nodes of the state are offered."""

    state: Any
    pod: Any
    node_names: list[str] = []
    config: Config = field(default_factory=Config)


def answers(lines: Iterable[bytes], settings: RequestSettings) -> Iterator[Document]:
    """Yields one answer for each line that is not blank. An unreadable line gets `{"error": sentence}`."""
    return (_answered(line, settings) for line in lines if line.strip())


def is_unreadable(answer: Document) -> bool:
    return answer.keys() == {"error"}


def fits(answer: Document) -> bool:
    return answer.get("node") is not None or bool(answer.get("fit"))


def _answered(line: bytes, settings: RequestSettings) -> Document:
    try:
        keys = decoded(line, dict[str, msgspec.Raw]).keys()
        if "devices" in keys:
            return answer_single_node(decoded(line, SingleNode))
        if "state" in keys:
            return answer_cluster(decoded(line, RecordedCluster), settings)
    except (msgspec.DecodeError, StateError, PolicyError) as error:
        return {"error": str(error)}
    return {"error": "the line has neither state and pod nor devices and containers"}


def answer_cluster(case: RecordedCluster, settings: RequestSettings) -> Document:
    """Answer one case. Raises StateError or PolicyError if it cannot be read."""
    settings = _configured(case.config, settings)
    pod = _read_pod(case.pod, "pod")
    ledger, names = read_state(case.state, "state", settings)
    names = case.node_names or names
    try:
        request = read_request(pod, settings)
    except RequestError as error:
        return _cluster_answer(Decision(node=None, error=str(error)))
    if request is None:
        return _cluster_answer(Decision(node=names[0], fits=dict.fromkeys(names, UNSCORED)))
    return _cluster_answer(decide(request, ledger.snapshot(excluding_uid=pod_key(pod)), names))


def _read_pod(document: object, where: str) -> Pod:
    """Returns one pod. Raises StateError."""
    if not isinstance(document, dict):
        raise StateError(f"{where}: holds no pod; write it with kubectl get pod NAME -o json")
    if "kind" not in document and "spec" not in document:
        raise StateError(f"{where}: holds an object without kind and spec, where one Pod is expected")
    if document.get("kind", "Pod") != "Pod":
        raise StateError(f"{where}: holds a {document['kind']} where one Pod is expected")
    return typed(document, Pod, where)


def answer_single_node(case: SingleNode) -> Document:
    try:
        request = read_request(_pod(case), RECORDED_WITH)
    except RequestError:
        return _single_answer(reason=REFUSED)
    if request is None:
        return _single_answer(reason=NOT_ASKED)
    quota = Quota(memory_mib=case.quota_memory, cores=case.quota_cores)
    decision = decide(request, Snapshot(nodes={NODE: _usage(case)}, quotas={NAMESPACE: (quota,)}), [NODE])
    if decision.node is None:
        return _single_answer(reason=decision.failed[NODE])
    return _fitting_answer(request, decision)


def _configured(config: Config, settings: RequestSettings) -> RequestSettings:
    node, gpu = config.node_scheduler_policy, config.gpu_scheduler_policy
    changes: dict[str, Any] = {
        "node_policy": None if node is None else parse_node_policy(node, "config.nodeSchedulerPolicy"),
        "gpu_policy": None if gpu is None else parse_gpu_policy(gpu, "config.gpuSchedulerPolicy"),
        "default_memory_mib": config.default_memory,
        "default_cores": config.default_cores,
        "memory_factor": config.memory_factor or None,
    }
    return replace(settings, **{name: value for name, value in changes.items() if value is not None})


def _cluster_answer(decision: Decision) -> Document:
    """HAMi names the failed nodes only if all of them failed, and so does the record."""
    return {
        "node": decision.node,
        "devices_to_allocate": encode_pod_devices(decision.shares) or None,
        "scores": scores_document(decision),
        "failed": decision.failed if decision.node is None else {},
        "error": decision.error or None,
    }


def _fitting_answer(request: GpuRequest, decision: Decision) -> Document:
    held = sorted(effective(request.kinds, decision.shares).items())
    return _single_answer(
        fit=True,
        devices=encode_pod_devices(decision.shares),
        node_score=shortest(decision.scores[NODE]),
        effective_shares="".join(f"{uuid}:{part.memory_mib}:{part.cores}:{part.replicas} " for uuid, part in held),
    )


def _single_answer(
    *, fit: bool = False, reason: str = "", devices: str = "", node_score: float = 0, effective_shares: str = ""
) -> Document:
    return {
        "fit": fit,
        "reason": reason,
        "devices_to_allocate": devices,
        "node_score": node_score,
        "effective": effective_shares,
    }


def _pod(case: SingleNode) -> Pod:
    containers = [
        Container(
            name=f"c{number}",
            resources=Resources(limits={f"nvidia.com/{name}": amount for name, amount in limits.items()}),
        )
        for number, limits in enumerate(case.containers)
    ]
    metadata = ObjectMeta(name="p", namespace=NAMESPACE, uid="p", annotations=case.annotations)
    return Pod(metadata=metadata, spec=PodSpec(containers=containers))


def _usage(case: SingleNode) -> NodeUsage:
    gpus = tuple(
        GpuUsage(_device(index, row), row.used, row.used_memory, row.used_cores)
        for index, row in enumerate(case.devices)
    )
    node = RegisteredNode(
        name=NODE,
        devices=tuple(gpu.device for gpu in gpus),
        pair_scores=_pair_scores(case),
        cordoned=decode_cordon(case.cordon),
    )
    return NodeUsage(node=node, gpus=gpus)


def _pair_scores(case: SingleNode) -> PairScores:
    return {
        DeviceUUID(uuid): {DeviceUUID(peer): score for peer, score in row.items()}
        for uuid, row in case.pair_scores.items()
    }


def _device(index: int, row: GpuRow) -> Device:
    return Device(
        uuid=DeviceUUID(row.id),
        index=index,
        replicas=row.count,
        memory_mib=row.memory,
        cores=row.cores,
        type=row.type,
        numa=row.numa,
        mode=row.mode,
        healthy=row.health,
    )
