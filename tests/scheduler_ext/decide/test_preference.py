"""A pod of several GPUs goes where these talk fastest."""

from dataclasses import replace

import pytest

from proto.annotations import keys
from proto.devices import DeviceUUID, PairScores
from proto.kubernetes.objects import Pod
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage
from scheduler_ext.decide.decision import decide
from scheduler_ext.decide.explain import explain
from tests.builders import container, pod
from tests.scheduler_ext.gpus import device, request, snapshot, usage

TOPOLOGY = {keys.GPU_POLICY: "topology-aware"}


def machine(name: str, score: int | None, *, used_mib: int = 0) -> NodeUsage:
    """Four GPUs, each pair with this score; the first one carries a share of another pod."""
    gpus = [GpuUsage(device(n), *((1, used_mib, 0) if n == 0 and used_mib else (0, 0, 0))) for n in range(4)]
    uuids = [gpu.device.uuid for gpu in gpus]
    scores: PairScores = {} if score is None else {a: {b: score for b in uuids if b != a} for a in uuids}
    return usage(name, gpus, scores)


def node_of(wanted: Pod, *nodes: NodeUsage) -> str | None:
    return decide(request(wanted), snapshot(*nodes), [each.node.name for each in nodes]).node


def test_a_pod_of_two_gpus_goes_to_the_nvlinked_node_though_another_is_fuller() -> None:
    pair = pod(container(gpu=2, gpumem=1000), annotations=TOPOLOGY)
    pcie, nvlink = machine("pcie", 40, used_mib=9000), machine("nvlink", 1810)
    assert node_of(pair, pcie, nvlink) == "nvlink"
    assert node_of(pod(container(gpu=2, gpumem=1000)), pcie, nvlink) == "pcie"


def test_a_node_without_published_links_never_wins() -> None:
    pair = pod(container(gpu=2, gpumem=1000), annotations=TOPOLOGY)
    assert node_of(pair, machine("a", None, used_mib=9000), machine("b", 10)) == "b"


def test_the_links_inside_every_container_count() -> None:
    fast = {DeviceUUID("G0"): {DeviceUUID("G1"): 1810}, DeviceUUID("G1"): {DeviceUUID("G0"): 1810}}
    one_fast_pair = usage("one-fast-pair", [GpuUsage(device(n, replicas=1)) for n in range(4)], fast)
    two_pairs = usage(
        "two-pairs", [GpuUsage(device(n, replicas=1)) for n in range(4)], machine("m", 1000).node.pair_scores
    )
    single = pod(container(gpu=2), annotations=TOPOLOGY)
    double = pod(container(gpu=2), container("d", gpu=2), annotations=TOPOLOGY)
    assert node_of(single, one_fast_pair, two_pairs) == "one-fast-pair"
    assert node_of(double, one_fast_pair, two_pairs) == "two-pairs"


def test_equally_fast_nodes_follow_the_node_policy_and_then_the_name() -> None:
    pair = pod(container(gpu=2, gpumem=1000), annotations=TOPOLOGY)
    spread = pod(container(gpu=2, gpumem=1000), annotations={**TOPOLOGY, keys.NODE_POLICY: "spread"})
    nodes = machine("c", 220), machine("b", 220), machine("a", 220, used_mib=9000)
    assert node_of(pair, *nodes) == "a"
    assert node_of(spread, *nodes) == "b"


def test_one_gpu_and_pods_of_other_policies_follow_the_node_policy_alone() -> None:
    pcie, nvlink = machine("pcie", 40, used_mib=9000), machine("nvlink", 1810)
    assert node_of(pod(container(gpu=1, gpumem=1000), annotations=TOPOLOGY), pcie, nvlink) == "pcie"
    assert node_of(pod(container(gpu=2, gpumem=1000)), pcie, nvlink) == "pcie"


def test_the_explanation_says_that_links_decided() -> None:
    asked = request(pod(container(gpu=2, gpumem=1000), annotations=TOPOLOGY))
    lines = explain(asked, decide(asked, snapshot(machine("a", 40), machine("b", 220)), ["a", "b"]))
    assert [(line.node, line.chosen, line.sentence.split("; ")[-1]) for line in lines] == [
        ("b", True, "links 220, compared first"),
        ("a", False, "links 40, compared first"),
    ]


def of_a_clique(free: NodeUsage) -> NodeUsage:
    return replace(free, node=replace(free.node, domains={keys.NODE_CLIQUE: "fabric.1"}))


@pytest.mark.parametrize("policy", ["binpack", "spread", "fgd"])
def test_a_small_pod_leaves_a_free_node_of_a_clique_whole(policy: str) -> None:
    by_policy = {keys.NODE_POLICY: policy}
    whole, begun = of_a_clique(machine("a", 40)), of_a_clique(machine("b", 40, used_mib=9000))
    apart = machine("c", 40)
    small = pod(container(gpu=1, gpumem=1000), annotations=by_policy)
    assert node_of(small, whole, apart) == "c"
    assert node_of(small, whole, begun) == "b"
    assert node_of(small, whole) == "a"
    assert node_of(pod(container(gpu=4), annotations=by_policy), whole, apart) == "a"


def test_the_links_between_a_pods_gpus_count_more_than_a_clique_that_stays_whole() -> None:
    pair = pod(container(gpu=2, gpumem=1000), annotations=TOPOLOGY)
    assert node_of(pair, of_a_clique(machine("a", 1810)), machine("b", 40)) == "a"


def test_a_node_with_a_gpu_out_of_service_is_not_kept_whole() -> None:
    ill = machine("a", 40)
    devices = (replace(ill.gpus[0].device, healthy=False), *(gpu.device for gpu in ill.gpus[1:]))
    ill = of_a_clique(usage("a", [GpuUsage(each) for each in devices]))
    assert node_of(pod(container(gpu=1, gpumem=1000)), ill, machine("b", 40)) == "a"
