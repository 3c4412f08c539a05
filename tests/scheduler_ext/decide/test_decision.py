"""The golden vectors of HAMi's decisions that no recorded case holds, and what TopoGPU does better."""

import dataclasses

from proto.annotations import keys
from proto.annotations.pod_devices import encode_pod_devices
from proto.devices import PairScores
from proto.kubernetes.objects import Pod
from scheduler_ext.cluster.accounting import Footprint
from scheduler_ext.cluster.registered import RegisteredNode
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage, Quota, Snapshot
from scheduler_ext.decide.decision import Decision, decide
from tests.builders import container, pod
from tests.scheduler_ext.gpus import device, request, snapshot, usage


def two_numa(**used: tuple[int, int, int]) -> list[GpuUsage]:
    return [GpuUsage(device(n, numa=n // 2), *used.get(f"G{n}", (0, 0, 0))) for n in range(4)]


def on(gpus: list[GpuUsage], wanted: Pod, scores: PairScores | None = None, quota: Quota | None = None) -> str:
    """The annotation, or the reason."""
    cluster = snapshot(usage("n", gpus, scores))
    if quota is not None:
        cluster = dataclasses.replace(cluster, quotas={"default": (quota,)})
    decision = decide(request(wanted), cluster, ["n"])
    return encode_pod_devices(decision.shares) if decision.node else decision.failed["n"]


def test_an_init_container_is_moved_to_the_gpus_of_the_app_containers_when_it_fits_there() -> None:
    both = pod(
        container(gpu=1, gpumem=40960),
        inits=[container(gpu=1, gpumem=1000)],
        annotations={keys.GPU_POLICY: "binpack"},
    )
    gpus = two_numa(G0=(1, 1000, 0))
    assert on(gpus, both) == "G3,NVIDIA,1000,0:;G3,NVIDIA,40960,0:;"


def test_each_container_has_its_own_limits_and_an_init_container_may_have_more_than_the_app_containers() -> None:
    apps = container("a", gpu=1, gpumem=30000), container("b", gpu=1, gpumem=30000)
    wanted = pod(*apps, inits=[container("i", gpu=1, gpumem=1000), container("j", gpu=1, gpumem=35000, gpucores=20)])
    both = [GpuUsage(device(0)), GpuUsage(device(1))]
    assert on(both, wanted) == "G1,NVIDIA,1000,0:;G1,NVIDIA,35000,20:;G1,NVIDIA,30000,0:;G0,NVIDIA,30000,0:;"


def test_a_sidecar_keeps_its_share_while_the_app_containers_run() -> None:
    together = pod(container(gpu=1, gpumem=30000), inits=[container("s", "Always", gpu=1, gpumem=20000)])
    assert on([GpuUsage(device(0))], together) == "1/1 CardInsufficientMemory"


def test_an_ordinary_init_container_is_gone_when_the_app_containers_run() -> None:
    in_turn = pod(container(gpu=1, gpumem=30000), inits=[container("i", gpu=1, gpumem=20000)])
    assert on([GpuUsage(device(0))], in_turn) == "G0,NVIDIA,20000,0:;G0,NVIDIA,30000,0:;"


def test_topology_aware_and_numa_bind_find_the_group_that_fits() -> None:
    bound = {keys.GPU_POLICY: "topology-aware", keys.NUMA_BIND: "true"}
    wanted = pod(container(gpu=2, gpumem=1000), annotations=bound)
    assert on(two_numa(G0=(10, 0, 0)), wanted) == "G3,NVIDIA,1000,0:G2,NVIDIA,1000,0:;"
    assert on(two_numa(G2=(10, 0, 0)), wanted) == "G1,NVIDIA,1000,0:G0,NVIDIA,1000,0:;"


def test_a_quota_for_one_gpu_refuses_the_second_of_a_connected_pair() -> None:
    wanted = pod(container(gpu=2, gpumem=10000), annotations={keys.GPU_POLICY: "topology-aware"})
    refused = on(two_numa(), wanted, quota=Quota(memory_mib=15000))
    assert refused == "1/4 AllocatedCardsInsufficientRequest, 3/4 ResourceQuotaNotFit"


def test_a_gpu_in_mig_mode_is_not_cut_by_hami_core() -> None:
    gpu = GpuUsage(dataclasses.replace(device(0), mode="mig"))
    wanted = pod(container(gpu=1, gpumem=1000), annotations={keys.VGPU_MODE: "hami-core"})
    assert on([gpu], wanted) == "1/1 CardTypeMismatch"


def test_a_cordoned_gpu_gets_no_new_pods() -> None:
    gpus = two_numa()
    node = RegisteredNode(
        name="n", devices=tuple(gpu.device for gpu in gpus), cordoned=frozenset({gpus[3].device.uuid})
    )
    cluster = Snapshot(nodes={"n": NodeUsage(node=node, gpus=tuple(gpus))})
    assert decide(request(pod(container(gpu=1))), cluster, ["n"]).shares[0][0].uuid == "G2"


def test_nodes_of_equal_score_are_taken_by_name() -> None:
    cluster = snapshot(*(usage(name, two_numa()) for name in ("b", "a", "c")))
    assert decide(request(pod(container(gpu=1))), cluster, ["c", "b", "a"]).node == "a"


def test_no_node_offered_is_said() -> None:
    assert decide(request(pod(container(gpu=1))), Snapshot(), []) == Decision(node=None, error="no node was offered")


def test_a_quota_on_gpus_counts_every_share_whoever_gets_it() -> None:
    wanted = pod(container("a", gpu=1, gpumem=100), container("b", gpu=2, gpumem=100))
    assert on(two_numa(), wanted, quota=Quota(gpus=3)) == "G3,NVIDIA,100,0:;G2,NVIDIA,100,0:G1,NVIDIA,100,0:;"
    refused = on(two_numa(), wanted, quota=Quota(gpus=3, used=Footprint(1, 0, 0)))
    assert refused == "1/4 AllocatedCardsInsufficientRequest, 3/4 ResourceQuotaNotFit"
