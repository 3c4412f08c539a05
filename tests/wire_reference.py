"""`docs/wire-reference.md`, from the names and codecs in `proto/annotations`: `python -m tests.wire_reference`."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from proto.annotations import keys
from proto.annotations.memory_resize import ResizeAnswer, ResizeState, encode_answer, encode_wish
from proto.annotations.mig_allocations import encode_mig_allocations, mig_allocations
from proto.annotations.node_allocation import AllocationMode
from proto.annotations.node_handshake import encode_reported
from proto.annotations.node_limits import NodeLimits
from proto.annotations.node_lock import BindPhase, NodeLock, encode_lock, encode_lock_uid, encode_time
from proto.annotations.node_numa import NodeNuma, TopologyPolicy, ZoneCpus, encode_numa
from proto.annotations.node_register import encode_cordon, encode_register, encode_scores
from proto.annotations.outliving_pods import Outliving, encode_outliving
from proto.annotations.pod_devices import encode_pod_devices
from proto.annotations.set_aside import SetAside, encode_set_aside
from proto.annotations.undecided_pods import encode_undecided
from proto.annotations.unhealthy_since import encode_unhealthy
from proto.devices import Device, DeviceShare, DeviceUUID, MigInstance, MigPlacement

ROOT = Path(__file__).parent.parent
_INTRODUCTION = """\
# Annotations, labels, resources, events

Every name on Kubernetes' objects that the two programs read or write, who writes it, and what it means.
Names in `hami.io` and `nvidia.com` are those of HAMi, with HAMi's meaning. Other labels of a Node:
[feature labels](configuration.md#feature-labels).
"""
_AT = datetime(2030, 1, 1, tzinfo=UTC)
_GPU, _PEER = DeviceUUID("GPU-a"), DeviceUUID("GPU-b")
_MIG = MigInstance(profile="1g.10gb", placement=MigPlacement(start=0, size=1))
_CLUSTER = "8f0c2a4e-0000-4000-8000-00000000c0de"
_SHARE = DeviceShare(uuid=_GPU, memory_mib=8_000, cores=30)
_LOCK = encode_lock(NodeLock(taken_at=_AT, namespace="default", pod="train"))
_DEVICE = Device(
    uuid=_GPU,
    index=0,
    replicas=10,
    memory_mib=81_559,
    cores=100,
    type="NVIDIA-NVIDIA H100",
    numa=0,
    mode="hami-core",
    healthy=True,
)
_NUMA = NodeNuma(policy=TopologyPolicy.RESTRICTED, zones={0: ZoneCpus(64, 62), 1: ZoneCpus(64, 64, closed=True)})
_WISH = encode_wish({"main": 8_192})


@dataclass(frozen=True, slots=True)
class WireName:
    key: str
    meaning: str
    value: str


_INSTANCES = encode_mig_allocations(mig_allocations(((replace(_SHARE, instance=_MIG),),)))

PODS: dict[str, Sequence[WireName]] = {
    "Resources: limits of a container": (
        WireName(keys.RESOURCE_COUNT, "how many GPUs", "2"),
        WireName(keys.RESOURCE_MEMORY, "memory of each GPU in MiB; all of it without a value", "8000"),
        WireName(keys.RESOURCE_MEMORY_PERCENTAGE, "the same, in percent of the GPU's memory", "25"),
        WireName(keys.RESOURCE_CORES, "cores of each GPU, in percent of one; 100 takes the GPU alone", "30"),
        WireName(keys.RESOURCE_PRIORITY, "priority of its tasks on a shared GPU: 0 goes before 1", "1"),
        WireName(keys.RESOURCE_MEMORY_SUM, "MiB of all its GPUs together ([sums](pods.md#sums)); the webhook", "16000"),
        WireName(keys.RESOURCE_CORES_SUM, "cores of all its GPUs together, in percent of one; the webhook", "60"),
    ),
    "Annotations of a pod, by its author": (
        WireName(keys.NODE_POLICY, "[which node](packing.md): `binpack`, `spread` or `fgd`", "binpack"),
        WireName(keys.GPU_POLICY, "which GPUs of it; a comma list is tried in order", "topology-aware"),
        WireName(
            keys.SCORING_WEIGHTS, "how much replicas, cores and memory count in a score", "slot=1,core=1,memory=2"
        ),
        WireName(keys.USE_GPU_TYPE, "only GPUs whose model contains one of these words", "H100,A100"),
        WireName(keys.NO_USE_GPU_TYPE, "no GPUs whose model contains one of them", "T4"),
        WireName(keys.USE_GPU_UUID, "only these GPUs", "GPU-a"),
        WireName(keys.NO_USE_GPU_UUID, "none of these GPUs", "GPU-b"),
        WireName(keys.NUMA_BIND, "all GPUs of a container from one NUMA node", "true"),
        WireName(keys.VGPU_MODE, "only GPUs in this mode: the daemon's `operating_mode`, or `mig`", "mig"),
        WireName(
            keys.REQUIRED_TOPOLOGY,
            "the pod's group goes into one domain of this level, or waits",
            keys.NODE_CLIQUE,
        ),
        WireName(
            keys.PREFERRED_TOPOLOGY,
            "the pod's group goes into as few domains of this level as can be",
            "cloud.provider.com/topology-rack",
        ),
        WireName(
            keys.KUEUE_REQUIRED_TOPOLOGY, "Kueue's word for the first, read where the level is ours", keys.NODE_CLIQUE
        ),
        WireName(keys.KUEUE_PREFERRED_TOPOLOGY, "Kueue's word for the second", keys.NODE_CLIQUE),
    ),
    "Annotations of a running pod, by people": (
        WireName(
            keys.MEMORY_WISH,
            "[other GPU memory](hami-core.md#other-memory-for-a-running-pod): MiB or a quantity for each container",
            _WISH,
        ),
    ),
    "Annotations of a running pod, by the extender and its node's daemon": (
        WireName(
            keys.MEMORY_RESIZE,
            "the answer to it: the daemon writes `shrinking` and `ready`, the extender `growing`, either `done` and "
            "`refused`",
            encode_answer(ResizeAnswer(wish=_WISH, state=ResizeState.DONE)),
        ),
    ),
    "Annotations of a pod, by the extender": (
        WireName(
            keys.DEVICES_TO_ALLOCATE,
            "what each container gets: GPU, vendor, MiB, percent",
            encode_pod_devices(((_SHARE,),)),
        ),
        WireName(keys.DEVICES_ALLOCATED, "the same, for all who count", encode_pod_devices(((_SHARE,),))),
        WireName(
            keys.MIG_ALLOCATIONS, "which MIG instance each share is; the daemon adds the driver's ids", _INSTANCES
        ),
        WireName(keys.POD_NODE, "the node; a label, too, for HAMi's monitor", "gpu-1"),
        WireName(keys.POD_TIME, "when it was decided, in seconds since 1970", encode_time(_AT)),
        WireName(
            keys.BIND_PHASE,
            "how far kubelet's call has come, where [Allocate is immediate](architecture.md#the-proof)",
            BindPhase.SUCCESS,
        ),
        WireName(keys.BIND_TIME, "when it was bound, in seconds since 1970", encode_time(_AT)),
        WireName(
            keys.SET_ASIDE,
            "[the node that is set aside](packing.md#room-for-large-jobs) for a pod that waits; without a node it is "
            "over",
            encode_set_aside(SetAside(node="gpu-1", since=1893456000, until=1893542400)),
        ),
        WireName(keys.REQUEUE, "a change that makes kube-scheduler try a waiting pod again", "2030-01-01T00:00:00Z"),
    ),
    "Labels of a pod or a namespace": (
        WireName(keys.WEBHOOK, "the [webhook](pods.md#the-webhook) leaves such pods alone", keys.WEBHOOK_IGNORE),
        WireName(keys.SCHEDULER_ROLE, "written by the extender on its own pods: which one leads", "leader"),
    ),
}
NODES: dict[str, Sequence[WireName]] = {
    "Annotations of a Node, by its daemon": (
        WireName(
            keys.NODE_REGISTER,
            "the GPUs: how many containers may share each, MiB, percent, model",
            encode_register((_DEVICE,)),
        ),
        WireName(
            keys.NODE_SCORE,
            "the score of the link between each pair of GPUs",
            encode_scores({_GPU: {_PEER: 1_820}, _PEER: {_GPU: 1_820}}, (_GPU, _PEER)),
        ),
        WireName(
            keys.NODE_HANDSHAKE,
            "the answer that HAMi's older schedulers wait for; off by default",
            encode_reported(_AT),
        ),
        WireName(
            keys.NODE_ALLOCATION,
            "[how Allocate learns whose pod it serves](architecture.md#the-proof)",
            AllocationMode.SLOTS,
        ),
        WireName(keys.NODE_LIMITS, "[what holds containers to a part of a GPU](hami-core.md)", NodeLimits.HAMI_CORE),
        WireName(
            keys.NODE_UNDECIDED,
            "what kubelet gave to pods that no extender decided",
            encode_undecided({"UID": {_GPU: 1}}),
        ),
        WireName(
            keys.NODE_OUTLIVING,
            "what deleted pods hold whose containers still run",
            encode_outliving(Outliving(4_711, {"UID": {_GPU: (1, 8_000, 30)}})),
        ),
        WireName(
            keys.NODE_UNHEALTHY, "since when GPUs have been [unhealthy](health.md)", encode_unhealthy({_GPU: _AT})
        ),
        WireName(keys.NODE_LABELS, "the feature labels that the daemon wrote", '{"nvidia.com/gpu.count":"8"}'),
        WireName(keys.NODE_SIMULATED, "the GPUs are simulated", "true"),
        WireName(
            keys.NODE_NUMA, "how kubelet keeps [CPUs beside GPUs](packing.md#cpus-beside-gpus)", encode_numa(_NUMA)
        ),
    ),
    "Annotations of a Node, by the extender": (
        WireName(keys.NODE_LOCK, "the node is allocating for this pod; only where Allocate is immediate", _LOCK),
        WireName(keys.NODE_LOCK_UID, "the same, with the pod's UID", encode_lock_uid(_LOCK, "UID")),
    ),
    "Annotations and labels of a Node, by people": (
        WireName(keys.DEVICE_CORDON, "GPUs that get no new pods", encode_cordon((_GPU, _PEER))),
        WireName(f"{keys.NODE_SIMULATED} (label)", "this node is to simulate GPUs", "true"),
        WireName(
            "topogpu.io/device-plugin.config (label)",
            "the daemon's [configuration](configuration.md#configurations-by-node) for this node",
            "small",
        ),
    ),
    "Labels of a Node that name domains": (
        WireName(keys.NODE_CLIQUE, "the machines that one NVLink fabric joins; written by the daemon", f"{_CLUSTER}.7"),
        WireName(keys.NODE_HOSTNAME, "the node itself; written by kubelet. The others are a setting", "gpu-1"),
    ),
    "Conditions, taints, Leases": (
        WireName(
            keys.NODE_CONDITION,
            "a condition of the Node: whether its GPUs are [healthy](health.md#gpus-that-stay-unhealthy)",
            "True",
        ),
        WireName(keys.NODE_TAINT, "a taint while GPUs stay unhealthy", "NoSchedule"),
        WireName(
            keys.LEASE_EVICTIONS,
            "on a Lease: which daemon evicted a pod, and when",
            '[["2030-01-01T00:00:00Z","gpu-1"]]',
        ),
    ),
}
EVENTS: Mapping[str, tuple[str, str]] = {
    "FilteringSucceed": ("pod", "node and GPUs that were chosen, and why"),
    "GroupDoesNotFit": ("PodGroup", "how many pods of the group start together, and how many of them fit"),
    "FilteringFailed": ("pod", "how many nodes refuse the pod for which reason"),
    "BindingSucceed": ("pod", "the Binding is written"),
    "BindingFailed": ("pod", "it is not, and why"),
    "UnknownPolicy": ("pod", "a policy in its annotations does not exist"),
    "UnreadableAllocation": ("pod", "the annotation with its GPUs cannot be read, so they count as taken"),
    "Preempting": ("pod", "pods that are evicted for it"),
    "PreemptionFailed": ("pod", "why none can be evicted"),
    "Preempted": ("pod", "it is evicted for another pod"),
    "NodeSetAside": ("pod, node", "the node is [set aside](packing.md#room-for-large-jobs) for the pod"),
    "NodeNoLongerSetAside": ("pod, node", "it is no longer, and why"),
    "GPUMemoryResized": ("pod", "it has the other GPU memory that was wished"),
    "GPUMemoryNotResized": ("pod", "it has not, and why"),
    "PriorityIgnored": ("pod", "its node does not obey the priority of GPU tasks"),
    "EvictedFromUnhealthyGPU": ("pod", "its GPU stays unhealthy"),
    "EvictionRefused": ("pod", "the API server refuses to evict it from such a GPU"),
    "NotEvicted": ("pod", "why it stays on such a GPU"),
    "UnreadableRegistration": (
        "Node",
        "the annotation that the message names cannot be read; without its GPUs it gets no pods",
    ),
    "GPUUnhealthy": ("Node", "a GPU gets no new pods, and why"),
    "GPUHealthy": ("Node", "it gets pods again"),
    "GPUMissing": ("Node", "a GPU that the driver lists cannot be used"),
    "GPUStaysUnhealthy": ("Node, pod", "for how long, and what is done about it"),
    "GPUsSimulated": ("Node", "no GPU is real"),
    "AsymmetricGPUP2PLink": ("Node", "two GPUs report different links to each other"),
    "LimitsNotEnforced": ("Node", "nothing holds containers to parts of GPUs"),
    "DriverLimitsGone": ("Node", "the driver limits GPU memory no more"),
    "GPUMemoryLimitRestored": ("pod", "the driver had lost a container's limit of GPU memory, and has it again"),
    "GPUMemoryLimitLost": ("pod", "nothing holds a running container to its GPU memory, and why"),
    "CPUsApartFromGPUs": (
        "pod",
        "kubelet gave a container CPUs of [another NUMA node](packing.md#cpus-beside-gpus) than its GPUs",
    ),
    "RefusedByTopologyManager": ("pod", "kubelet could not bring its CPUs and GPUs together, and what is free"),
    "HAMiCoreGone": ("Node", "HAMi-core was removed; containers with a part of a GPU do not start"),
    "FeatureLabelsNotOurs": ("Node", "another program owns labels that the daemon would write"),
    "ConfigurationNotUsed": ("Node", "its label names a configuration that does not exist"),
}


def recorded_reasons() -> set[str]:
    """The reason of every event in the code of both programs."""
    files = [path for room in ("deviceplugin", "scheduler_ext") for path in (ROOT / room).rglob("*.py")]
    return {reason for path in files for reason in _reasons(ast.parse(path.read_text(encoding="utf-8")))}


def _reasons(tree: ast.Module) -> Iterator[str]:
    """Reasons are written where a Notice is made, or given to the one method that makes Notices for others."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called == "Notice":
                given = [each.value for each in node.keywords if each.arg == "reason"]
            elif called == "self._announce":
                given = node.args
            else:
                continue
            words = [
                one for each in given for one in ((each.body, each.orelse) if isinstance(each, ast.IfExp) else (each,))
            ]
            yield from (each.value for each in words if isinstance(each, ast.Constant) and isinstance(each.value, str))


def reference() -> str:
    """The document."""
    tables = [_table(title, rows) for title, rows in (PODS | NODES).items()]
    rows = "\n".join(f"| `{reason}` | {subject} | {meaning} |" for reason, (subject, meaning) in EVENTS.items())
    return "\n".join([_INTRODUCTION, *tables, f"## Events\n\n| reason | on | meaning |\n|---|---|---|\n{rows}\n"])


def _table(title: str, names: Sequence[WireName]) -> str:
    rows = "\n".join(f"| `{each.key}` | {each.meaning} | `{each.value}` |" for each in names)
    return f"## {title}\n\n| name | meaning | example |\n|---|---|---|\n{rows}\n"


if __name__ == "__main__":
    print(reference(), end="")
