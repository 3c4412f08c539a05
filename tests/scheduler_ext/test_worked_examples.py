"""The examples the scheduler documents work out by hand, each under its own name."""

from itertools import combinations

import pytest

from proto.annotations import keys
from proto.annotations.node_register import decode_scores
from proto.devices import DeviceUUID, PairScores
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.snapshot import GpuUsage
from scheduler_ext.decide.decision import Decision, decide
from scheduler_ext.decide.score import device_score, node_score, sort_gpus
from scheduler_ext.policies import Weights
from scheduler_ext.requests import RequestSettings
from tests.builders import container, node, pod
from tests.scheduler_ext.gpus import device, request, snapshot, usage

FOUR_GPUS: PairScores = {
    DeviceUUID("G0"): {DeviceUUID("G1"): 100, DeviceUUID("G2"): 100, DeviceUUID("G3"): 200},
    DeviceUUID("G1"): {DeviceUUID("G0"): 100, DeviceUUID("G2"): 200, DeviceUUID("G3"): 100},
    DeviceUUID("G2"): {DeviceUUID("G0"): 100, DeviceUUID("G1"): 200, DeviceUUID("G3"): 200},
    DeviceUUID("G3"): {DeviceUUID("G0"): 200, DeviceUUID("G1"): 100, DeviceUUID("G2"): 200},
}


def _one_after_the_other(policy_key: str, policy: str, nodes: int) -> list[Decision]:
    """Two pods of a fifth of a GPU each, on nodes of four GPUs."""
    ledger = Ledger()
    ledger.replace_nodes([node(f"n{n}", [device(g) for g in range(4)]) for n in range(nodes)])
    decisions = []
    for name in ("first", "second"):
        wanted = pod(container(gpu=1, gpucores=20, gpumem_percentage=20), name=name, annotations={policy_key: policy})
        decision = decide(request(wanted), ledger.snapshot(), sorted(f"n{n}" for n in range(nodes)))
        assert decision.node is not None
        ledger.reserve(wanted.metadata.uid, wanted, decision.node, decision.shares, until=60.0)
        decisions.append(decision)
    return decisions


def test_node_policy_binpack_puts_both_pods_on_the_same_node() -> None:
    first, second = _one_after_the_other(keys.NODE_POLICY, "binpack", nodes=2)
    assert first.node == second.node


def test_node_policy_spread_puts_the_pods_on_different_nodes() -> None:
    first, second = _one_after_the_other(keys.NODE_POLICY, "spread", nodes=2)
    assert first.node != second.node


def test_node_score_by_gpu_count_is_10_and_7_5_counted_after_the_pod() -> None:
    def after_the_pod(used: int) -> float:
        whole = device(0, replicas=4)
        need = request(pod(container(gpu=1, gpumem=1))).needs[0]
        assert need is not None
        return device_score(GpuUsage(whole, replicas=used), need, Weights(replicas=1, cores=0, memory=0))

    assert (after_the_pod(3), after_the_pod(2)) == (10.0, 7.5)


@pytest.mark.parametrize(("policy", "chosen"), [("binpack", "node-1"), ("spread", "node-2")])
def test_of_3_and_2_used_gpus_of_4_binpack_picks_the_first_and_spread_the_second(policy: str, chosen: str) -> None:
    nodes = [
        usage(name, [GpuUsage(device(g, replicas=1), replicas=int(g < used)) for g in range(4)])
        for name, used in (("node-1", 3), ("node-2", 2))
    ]
    wanted = pod(container(gpu=1, gpumem=1), annotations={keys.NODE_POLICY: policy})
    assert decide(request(wanted), snapshot(*nodes), ["node-1", "node-2"]).node == chosen


def test_gpu_policy_binpack_puts_both_pods_on_the_same_gpu() -> None:
    first, second = _one_after_the_other(keys.GPU_POLICY, "binpack", nodes=1)
    assert first.shares == second.shares


def test_gpu_policy_spread_puts_the_pods_on_different_gpus() -> None:
    first, second = _one_after_the_other(keys.GPU_POLICY, "spread", nodes=1)
    assert first.shares[0][0].uuid != second.shares[0][0].uuid


def test_gpu_score_by_cores_and_memory_is_6_75_and_17_75() -> None:
    need = request(pod(container(gpu=1, gpumem=1000, gpucores=20))).needs[0]
    assert need is not None
    gpu_1 = GpuUsage(device(1, memory_mib=8000), replicas=1, cores=10, memory_mib=2000)
    gpu_2 = GpuUsage(device(2, memory_mib=8000), replicas=1, cores=70, memory_mib=6000)
    weights = Weights(replicas=0)
    assert (device_score(gpu_1, need, weights), device_score(gpu_2, need, weights)) == (6.75, 17.75)


@pytest.mark.parametrize(("policy", "chosen"), [("binpack", "G2"), ("spread", "G1")])
def test_of_gpus_scored_6_75_and_17_75_binpack_picks_the_second_and_spread_the_first(policy: str, chosen: str) -> None:
    gpus = [
        GpuUsage(device(1, memory_mib=8000), replicas=1, cores=10, memory_mib=2000),
        GpuUsage(device(2, memory_mib=8000), replicas=1, cores=70, memory_mib=6000),
    ]
    annotations = {keys.GPU_POLICY: policy, keys.SCORING_WEIGHTS: "slot=0,core=1,memory=1"}
    wanted = pod(container(gpu=1, gpumem=1000, gpucores=20), annotations=annotations)
    assert decide(request(wanted), snapshot(usage("n", gpus)), ["n"]).shares[0][0].uuid == chosen


def test_device_score_with_all_three_terms_is_16_25() -> None:
    need = request(pod(container(gpu=1, gpumem=4096, gpucores=20))).needs[0]
    assert need is not None
    gpu = GpuUsage(device(0, memory_mib=16384), replicas=3, cores=40, memory_mib=6144)
    assert device_score(gpu, need, Weights()) == 16.25
    assert device_score(gpu, need, Weights(memory=3)) == 28.75


@pytest.mark.parametrize(
    ("policy", "numa_bind", "visited"),
    [
        ("binpack", "true", "BADC"),
        ("spread", "true", "CDAB"),
        ("binpack", "false", "DBCA"),
        ("spread", "false", "ACBD"),
    ],
)
def test_order_of_devices_with_numa(policy: str, numa_bind: str, visited: str) -> None:
    scored = {"A": (0, 5), "B": (0, 15), "C": (1, 8), "D": (1, 20)}
    letters = dict(zip(("G0", "G1", "G2", "G3"), scored, strict=True))
    gpus = [
        GpuUsage(device(number, numa=numa, memory_mib=100), memory_mib=score)
        for number, (numa, score) in enumerate(scored.values())
    ]
    wanted = request(pod(container(gpu=1, gpumem=1), annotations={keys.GPU_POLICY: policy, keys.NUMA_BIND: numa_bind}))
    need = wanted.needs[0]
    assert need is not None
    sort_gpus(gpus, need, wanted)
    assert "".join(letters[gpu.device.uuid] for gpu in reversed(gpus)) == visited


def _thirds(used: int, cores: int, memory: int) -> list[GpuUsage]:
    """Four replicas, 100 cores and 100 MiB on one GPU, so that percentages are exact."""
    return [GpuUsage(device(0, replicas=4, memory_mib=100), replicas=used, cores=cores, memory_mib=memory)]


def test_node_scores_are_7_and_21_and_0() -> None:
    nodes = {"A": _thirds(1, 25, 20), "B": _thirds(3, 70, 65), "C": _thirds(0, 0, 0)}
    assert [node_score(gpus).total for gpus in nodes.values()] == pytest.approx([7.0, 21.0, 0.0])
    for policy, chosen in (("binpack", "B"), ("spread", "C")):
        wanted = pod(container(gpu=1, gpumem=1), annotations={keys.NODE_POLICY: policy})
        usages = [usage(name, gpus) for name, gpus in nodes.items()]
        assert decide(request(wanted), snapshot(*usages), list(nodes)).node == chosen


def _connected(count: int) -> set[str]:
    annotations = {keys.GPU_POLICY: "topology-aware"}
    four = usage("n", [GpuUsage(device(number)) for number in range(4)], FOUR_GPUS)
    wanted = request(pod(container(gpu=count, gpumem=1000), annotations=annotations))
    return {share.uuid for share in decide(wanted, snapshot(four), ["n"]).shares[0]}


def test_topology_aware_gives_one_gpu_from_the_least_connected() -> None:
    assert _connected(1) in ({"G0"}, {"G1"})


def test_topology_aware_gives_two_gpus_with_the_best_link() -> None:
    assert _total(_connected(2)) == 200


def test_topology_aware_gives_three_gpus_with_total_500() -> None:
    assert _total(_connected(3)) == 500


def _total(chosen: set[str]) -> int:
    return sum(FOUR_GPUS[DeviceUUID(a)][DeviceUUID(b)] for a, b in combinations(sorted(chosen), 2))


def test_pair_scores_written_as_strings_are_read_as_integers() -> None:
    assert decode_scores('[{"uuid":"G0","score":{"G1":"100"}}]') == {"G0": {"G1": 100}}


def test_the_defaults_are_binpack_over_nodes_and_spread_over_gpus_and_a_pod_overrides_them_for_itself() -> None:
    settings = RequestSettings()
    assert (settings.node_policy, settings.gpu_policy.text) == ("binpack", "spread")
    overridden = request(pod(container(gpu=1), annotations={keys.NODE_POLICY: "spread", keys.GPU_POLICY: "binpack"}))
    assert (overridden.policies.node, overridden.policies.gpu.text) == ("spread", "binpack")
    assert request(pod(container(gpu=1))).policies.gpu.text == "spread"
