from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kubectl_topogpu.amounts import RequestedMemory
from kubectl_topogpu.cluster import Objects, read_cluster
from kubectl_topogpu.fit import FitShape
from proto.annotations import keys
from proto.annotations.pod_devices import encode_pod_devices
from proto.devices import DeviceUUID
from proto.kubernetes.objects import ObjectMeta, Pod, PodStatus, ResourceQuota, ResourceQuotaSpec
from scheduler_ext.capacity.rooms import quota_pods, rooms
from scheduler_ext.decide.decision import decide
from scheduler_ext.requests import RequestSettings, ResourceNames, read_request
from tests.builders import node
from tests.scheduler_ext.gpus import GIB, device

NAMES = ResourceNames()


def shape(*, gpus: int, memory_mib: int | None = None, cores: int | None = None, gpu_policy: str = "") -> Pod:
    annotations = {keys.GPU_POLICY: gpu_policy} if gpu_policy else {}
    asked = FitShape(gpus=gpus, memory=RequestedMemory(mib=memory_mib), cores=cores, annotations=annotations)
    return asked.pod(NAMES, "ml")


def request_of(pod: Pod) -> Any:
    return read_request(pod, RequestSettings())


def running(name: str, on: str, asked: Pod, shares: Any) -> Pod:
    annotations = {keys.DEVICES_ALLOCATED: encode_pod_devices(shares)}
    pod = Pod(
        metadata=ObjectMeta(name=name, namespace="ml", uid=name, annotations=annotations),
        spec=asked.spec,
        status=PodStatus(phase="Running"),
    )
    pod.spec = type(asked.spec)(containers=asked.spec.containers, node_name=on)
    return pod


NODES = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from([8 * GIB, 40 * GIB]), st.integers(1, 4)), min_size=1, max_size=3
)
SHAPES = st.fixed_dictionaries(
    {"gpus": st.integers(1, 3)},
    optional={
        "memory_mib": st.sampled_from([1000, 5000, 20_000, 90_000]),
        "cores": st.sampled_from([0, 10, 40, 100]),
        "gpu_policy": st.sampled_from(["binpack", "spread", "topology-aware"]),
    },
)


@given(NODES, SHAPES, SHAPES)
def test_so_many_fit_as_the_scheduler_would_place_one_after_the_other(
    sizes: list[tuple[int, int, int]], first: dict[str, Any], asked: dict[str, Any]
) -> None:
    nodes = tuple(
        node(f"n{at}", [device(10 * at + gpu, memory_mib=mib, replicas=slots) for gpu in range(gpus)])
        for at, (gpus, mib, slots) in enumerate(sizes)
    )
    names = [each.metadata.name for each in nodes]
    pods: list[Pod] = []

    def placed(wanted: Pod) -> bool:
        cluster = read_cluster(Objects(nodes=nodes, pods=tuple(pods)), RequestSettings())
        decision = decide(request_of(wanted), cluster.snapshot(), names)
        if decision.node is not None:
            pods.append(running(f"p{len(pods)}", decision.node, wanted, decision.shares))
        return decision.node is not None

    placed(shape(**first))
    before = len(pods)
    wanted = shape(**asked)
    found = rooms(
        request_of(wanted), read_cluster(Objects(nodes=nodes, pods=tuple(pods)), RequestSettings()).snapshot()
    )
    while placed(wanted):
        pass
    assert sum(room.pods for room in found) == len(pods) - before
    by_node = {name: sum(pod.spec.node_name == name for pod in pods[before:]) for name in names}
    assert {room.node: room.pods for room in found} == by_node


def test_a_quota_limits_what_the_nodes_have_room_for() -> None:
    quota = ResourceQuota(
        metadata=ObjectMeta(name="q", namespace="ml"), spec=ResourceQuotaSpec(hard={"limits.nvidia.com/gpumem": 25_000})
    )
    nodes = (node("n", [device(0), device(1)]),)
    cluster = read_cluster(Objects(nodes=nodes, quotas=(quota,)), RequestSettings())
    wanted = request_of(shape(gpus=1, memory_mib=10_000))
    found = rooms(wanted, cluster.snapshot())
    assert [room.pods for room in found] == [8]
    assert quota_pods(wanted, cluster.snapshot(), found) == 2


def test_a_gpu_that_the_pod_names_has_room_only_where_it_is() -> None:
    nodes = tuple(node(f"n{at}", [device(at)]) for at in range(3))
    pod = shape(gpus=1, memory_mib=40 * GIB)
    pod.metadata.annotations[keys.USE_GPU_UUID] = "G1"
    found = rooms(request_of(pod), read_cluster(Objects(nodes=nodes), RequestSettings()).snapshot())
    assert [room.pods for room in found] == [0, 1, 0]


def test_nodes_that_differ_only_in_whether_limits_are_enforced_are_told_apart() -> None:
    twin = replace(device(0), uuid=DeviceUUID("G9"))
    enforcing, other = node("a", [device(0)]), node("b", [twin])
    other.metadata.annotations[keys.NODE_LIMITS] = "none"
    found = rooms(
        request_of(shape(gpus=1, memory_mib=10 * GIB)),
        read_cluster(Objects(nodes=(enforcing, other)), RequestSettings()).snapshot(),
    )
    assert [room.pods for room in found] == [4, 0]


def test_a_node_without_room_names_the_gpus_that_are_unhealthy() -> None:
    nodes = (node("n", [device(0), replace(device(1), healthy=False)]),)
    (room,) = rooms(request_of(shape(gpus=2)), read_cluster(Objects(nodes=nodes), RequestSettings()).snapshot())
    assert (room.pods, room.reason) == (0, "GPU 1 is unhealthy")
