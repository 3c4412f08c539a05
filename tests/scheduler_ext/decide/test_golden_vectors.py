"""The golden decision vectors of HAMi v2.10, by their numbers, and what TopoGPU does better there.

Source: vectors produced by HAMi v2.10.0 (pkg/scheduler, pkg/device/nvidia); 18, 20, 24 and 30 are its known defects,
with the answer that is right. 25 to 27 are about MIG and stand with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import pytest

from proto.annotations import keys
from proto.annotations.pod_devices import encode_pod_devices
from proto.devices import DeviceUUID, PairScores
from proto.kubernetes.objects import Container
from scheduler_ext.cluster.accounting import Footprint, effective
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage, Quota
from scheduler_ext.decide.decision import Decision, decide
from tests.builders import container, pod
from tests.scheduler_ext.gpus import device, request, snapshot, usage
from tests.scheduler_ext.test_worked_examples import FOUR_GPUS

Used = tuple[int, int, int]
"""Slots, MiB and cores."""


def four(**used: Used) -> list[GpuUsage]:
    """Four GPUs, two on each of two NUMA nodes."""
    return [GpuUsage(device(n, numa=n // 2), *used.get(f"G{n}", (0, 0, 0))) for n in range(4)]


def small(count: int) -> list[GpuUsage]:
    return [GpuUsage(device(n, memory_mib=16384)) for n in range(count)]


@dataclass(frozen=True, kw_only=True)
class Vector:
    """`expected` is the annotation, or the failure text."""

    number: str
    gpus: list[GpuUsage]
    containers: Sequence[Container]
    expected: str
    inits: Sequence[Container] = ()
    policy: str | None = None
    bound: bool = False
    quota: Quota | None = None


ONE = container(gpu=1, gpumem=4000, gpucores=20)
PAIR = container(gpu=2, gpumem=1000)
LIGHT = container(gpu=1, gpumem=1000, gpucores=10)
THIRD = container(gpu=1, gpumem=3000)

VECTORS = [
    *(
        Vector(number=f"1 {policy}", gpus=four(), containers=[ONE], policy=policy, expected="G3,NVIDIA,4000,20:;")
        for policy in ("spread", "binpack", "mutex", "numa", "topology-aware", "bogus")
    ),
    *(
        Vector(
            number=f"2 {policy}",
            gpus=four(G1=(1, 4000, 20)),
            containers=[ONE],
            policy=policy,
            expected="G1,NVIDIA,4000,20:;",
        )
        for policy in ("binpack", "binpack,numa")
    ),
    *(
        Vector(
            number=f"3 {policy}",
            gpus=four(G1=(1, 4000, 20)),
            containers=[ONE],
            policy=policy,
            expected="G3,NVIDIA,4000,20:;",
        )
        for policy in ("numa,binpack", "numa", "mutex", "spread")
    ),
    Vector(
        number="4",
        gpus=small(1),
        containers=[container(gpu=1, gpumem_percentage=33)],
        expected="G0,NVIDIA,5406,0:;",
    ),
    Vector(number="5", gpus=small(1), containers=[container(gpu=1)], expected="G0,NVIDIA,16384,0:;"),
    Vector(
        number="6",
        gpus=four(),
        containers=[container(gpu=1, gpumem=1000, gpumem_percentage=50)],
        expected="G3,NVIDIA,1000,0:;",
    ),
    Vector(
        number="7",
        gpus=four(),
        containers=[container(gpu=1, gpumem=100, gpucores=150)],
        expected="G3,NVIDIA,100,100:;",
    ),
    Vector(number="8", gpus=four(), containers=[container(gpu=5)], expected="NodeInsufficientDevice"),
    Vector(
        number="9",
        gpus=four(G0=(1, 20000, 0), G1=(1, 20000, 0)),
        containers=[container(gpu=3, gpumem=30000)],
        expected="2/4 AllocatedCardsInsufficientRequest, 2/4 CardInsufficientMemory",
    ),
    Vector(
        number="10",
        gpus=four(G0=(1, 20000, 0), G1=(1, 20000, 0), G2=(1, 1, 0), G3=(1, 1, 1)),
        containers=[container(gpu=1, gpumem=100, gpucores=100)],
        expected="1/4 CardInsufficientCore, 3/4 ExclusiveDeviceAllocateConflict",
    ),
    Vector(
        number="11",
        gpus=four(**{f"G{n}": (1, 0, 100) for n in range(4)}),
        containers=[container(gpu=1, gpumem=100)],
        expected="4/4 CardComputeUnitsExhausted",
    ),
    Vector(
        number="12",
        gpus=small(2),
        containers=[LIGHT, LIGHT],
        policy="spread",
        expected="G1,NVIDIA,1000,10:;G0,NVIDIA,1000,10:;",
    ),
    Vector(
        number="13",
        gpus=small(2),
        containers=[LIGHT, LIGHT],
        policy="binpack",
        expected="G1,NVIDIA,1000,10:;G1,NVIDIA,1000,10:;",
    ),
    Vector(
        number="14",
        gpus=small(1),
        containers=[LIGHT, LIGHT],
        policy="mutex",
        expected="1/1 ExclusiveDeviceAllocateConflict",
    ),
    Vector(
        number="15",
        gpus=four(G0=(10, 0, 0)),
        containers=[PAIR],
        policy="spread",
        bound=True,
        expected="G3,NVIDIA,1000,0:G2,NVIDIA,1000,0:;",
    ),
    Vector(
        number="16",
        gpus=four(G2=(10, 0, 0)),
        containers=[PAIR],
        policy="spread",
        bound=True,
        expected="G1,NVIDIA,1000,0:G0,NVIDIA,1000,0:;",
    ),
    Vector(
        number="17",
        gpus=four(),
        containers=[container(gpu=3, gpumem=1000)],
        policy="spread",
        bound=True,
        expected="2/4 AllocatedCardsInsufficientRequest, 2/4 NumaNotFit",
    ),
    Vector(
        number="18, where HAMi refuses",
        gpus=four(G0=(10, 0, 0)),
        containers=[PAIR],
        policy="topology-aware",
        bound=True,
        expected="G3,NVIDIA,1000,0:G2,NVIDIA,1000,0:;",
    ),
    Vector(
        number="19 and 20",
        gpus=four(),
        containers=[container(), container(gpu=1, gpumem=1000)],
        expected=";G3,NVIDIA,1000,0:;",
    ),
    Vector(
        number="21",
        gpus=four(),
        inits=[container("i", gpu=1, gpumem=8000)],
        containers=[container(gpu=1, gpumem=1000)],
        expected="G3,NVIDIA,8000,0:;G3,NVIDIA,1000,0:;",
    ),
    Vector(
        number="29",
        gpus=[GpuUsage(device(0))],
        containers=[THIRD, THIRD],
        quota=Quota(memory_mib=5000),
        expected="1/1 ResourceQuotaNotFit",
    ),
    Vector(
        number="30, where HAMi lets it pass",
        gpus=[GpuUsage(device(0))],
        inits=[container("i")],
        containers=[THIRD, THIRD],
        quota=Quota(memory_mib=5000),
        expected="1/1 ResourceQuotaNotFit",
    ),
]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.number)
def test_the_decision_is_the_golden_one(vector: Vector) -> None:
    decision = decided(vector)
    answer = encode_pod_devices(decision.shares) if decision.node else decision.failed["n"]
    assert answer == vector.expected


def decided(vector: Vector, scores: PairScores | None = None) -> Decision:
    annotations = {}
    if vector.policy is not None:
        annotations[keys.GPU_POLICY] = vector.policy
    if vector.bound:
        annotations[keys.NUMA_BIND] = "true"
    wanted = request(pod(*vector.containers, inits=vector.inits, annotations=annotations))
    cluster = snapshot(usage("n", vector.gpus, scores))
    quotas = {} if vector.quota is None else {"default": (vector.quota,)}
    return decide(wanted, replace(cluster, quotas=quotas), ["n"])


def test_21_an_init_and_an_app_container_on_one_gpu_hold_the_larger_share_and_one_slot() -> None:
    (vector,) = (each for each in VECTORS if each.number == "21")
    wanted = request(pod(*vector.containers, inits=vector.inits))
    held = effective(wanted.kinds, decided(vector).shares)
    assert held == {"G3": Footprint(replicas=1, memory_mib=8000, cores=0)}


def connected(
    count: int,
    scores: PairScores,
    gpus: list[GpuUsage],
    policy: str = "topology-aware",
    quota: Quota | None = None,
) -> set[str]:
    wanted = [container(gpu=count, gpumem=10000)]
    vector = Vector(number="", gpus=gpus, containers=wanted, policy=policy, quota=quota, expected="")
    decision = decided(vector, scores)
    return {share.uuid for share in decision.shares[0]} if decision.node else set()


def total(chosen: set[str]) -> int:
    return sum(FOUR_GPUS[DeviceUUID(a)][DeviceUUID(b)] for a, b in combinations(sorted(chosen), 2))


@pytest.mark.parametrize(("count", "best"), [(2, 200), (3, 500), (4, 900)])
def test_22_the_chosen_gpus_have_the_best_total(count: int, best: int) -> None:
    one_numa = [GpuUsage(device(n)) for n in range(4)]
    assert total(connected(count, FOUR_GPUS, one_numa)) == best


@pytest.mark.parametrize(("policy", "used"), [("topology-aware", 0), ("binpack,topology-aware", 1)])
def test_22_and_23_a_single_gpu_is_one_of_the_two_with_the_least_links(policy: str, used: int) -> None:
    gpus = [GpuUsage(device(n), *((used, 1000 * used, 0) if n == 1 else (0, 0, 0))) for n in range(4)]
    assert connected(1, FOUR_GPUS, gpus, policy=policy) <= {"G0", "G1"}


@pytest.mark.parametrize(("count", "best"), [(2, 200), (3, 500)])
def test_23_so_they_have_beside_a_used_gpu(count: int, best: int) -> None:
    gpus = [GpuUsage(device(n), *((1, 1000, 0) if n == 1 else (0, 0, 0))) for n in range(4)]
    assert total(connected(count, FOUR_GPUS, gpus, policy="binpack,topology-aware")) == best


@pytest.mark.parametrize("quota", [None, Quota(memory_mib=25000)])
def test_24_a_quota_does_not_hide_the_best_connected_pair(quota: Quota | None) -> None:
    uuids = [gpu.device.uuid for gpu in four()]
    scores = {a: {b: 100 if {a, b} == {"G0", "G1"} else 10 for b in uuids if b != a} for a in uuids}
    assert connected(2, scores, four(), quota=quota) == {"G0", "G1"}


@pytest.mark.parametrize(
    ("policy", "chosen", "ranked"),
    [("binpack", "n1", ["n1", "n2", "n3"]), ("spread", "n3", ["n3", "n2", "n1"]), ("bogus", "n1", ["n1", "n2", "n3"])],
)
def test_28_of_three_nodes_binpack_takes_the_fullest_and_spread_the_emptiest(
    policy: str, chosen: str, ranked: list[str]
) -> None:
    def node(name: str, used: Used) -> NodeUsage:
        return usage(name, [GpuUsage(device(0, memory_mib=16384), *used), GpuUsage(device(1, memory_mib=16384))])

    nodes = [node("n1", (2, 8192, 50)), node("n2", (1, 1000, 10)), node("n3", (0, 0, 0))]
    wanted = pod(container(gpu=1, gpumem=1), annotations={keys.NODE_POLICY: policy})
    decision = decide(request(wanted), snapshot(*nodes), ["n1", "n2", "n3"])
    sign = 1 if policy == "spread" else -1
    assert decision.node == chosen
    assert {name: f"{score:.2f}" for name, score in decision.scores.items()} == {
        "n1": "6.00",
        "n2": "1.31",
        "n3": "0.00",
    }
    assert sorted(decision.scores, key=lambda name: sign * decision.scores[name]) == ranked
