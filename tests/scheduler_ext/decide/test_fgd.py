"""What a node strands, worked by hand and by FGD's own sum over classes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.annotations import keys
from proto.devices import Device
from proto.kubernetes.requests import NO_HOST, HostAmount
from scheduler_ext.cluster.registered import RegisteredNode
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage, Snapshot
from scheduler_ext.decide.decision import decide
from scheduler_ext.decide.fgd import Fragmentation, islands
from scheduler_ext.policies import Policies, parse_gpu_policy, parse_node_policy
from scheduler_ext.requests import ContainerNeed, GpuRequest
from scheduler_ext.workload import PodClass, Popular, Workload, class_of
from tests.builders import container, pod
from tests.scheduler_ext.gpus import device, request

MIB = 1000
"""Of each GPU, so that a MiB is a thousandth."""


def gpus(*taken: int) -> NodeUsage:
    devices = tuple(device(number, memory_mib=MIB) for number in range(len(taken)))
    node = RegisteredNode(name="n", devices=devices)
    used = (GpuUsage(each, int(amount > 0), amount, 0) for each, amount in zip(devices, taken, strict=True))
    return NodeUsage(node=node, gpus=tuple(used))


def asks(count: int = 1, milli: int = MIB, cores: int = 0, cpu_milli: int = 0) -> PodClass:
    need = ContainerNeed(count=count, memory_mib=milli, memory_percentage=None, cores=cores)
    return PodClass(host=HostAmount(cpu_milli, 0), need=need)


def workload(*classes: PodClass, per_gpu: HostAmount = NO_HOST) -> Workload:
    share = 1 / len(classes)
    return Workload(classes=tuple(Popular(pods=each, share=share) for each in classes), per_gpu=per_gpu)


def fgd(asked: GpuRequest) -> GpuRequest:
    return replace(asked, policies=Policies(node=parse_node_policy("fgd"), gpu=parse_gpu_policy("fgd")))


def by_the_definition(usage: NodeUsage, cpu_milli: int, popular: Workload) -> float:
    """F_n of the paper: all that is free where a class cannot run, else the parts that are too small for it."""
    left = [MIB - gpu.memory_mib for gpu in usage.gpus]
    stranded = 0.0
    for each in popular.classes:
        need = each.pods.need
        enough = [part for part in left if part >= need.memory_mib]
        runs = len(enough) >= need.count and each.pods.host.cpu_milli <= cpu_milli
        stranded += each.share * (sum(left) - sum(enough) if runs else sum(left))
    return stranded / MIB


classes = st.builds(asks, st.integers(1, 3), st.integers(1, MIB), st.just(0), st.integers(0, 4000))


@given(st.lists(st.integers(0, MIB), min_size=1, max_size=4), st.lists(classes, min_size=1, max_size=5), st.data())
def test_it_is_fragmentation_as_the_paper_defines_it(
    taken: list[int], popular: list[PodClass], data: st.DataObject
) -> None:
    usage, cpu, wanted = gpus(*taken), data.draw(st.integers(0, 4000)), workload(*popular)
    found = Fragmentation(wanted).stranded(usage, HostAmount(cpu, 1 << 20))
    assert found == pytest.approx(by_the_definition(usage, cpu, wanted))


def test_gpus_for_which_there_is_no_cpu_count_as_lost() -> None:
    found = Fragmentation(workload(asks(), per_gpu=HostAmount(10_000, 0)))
    assert found.stranded(gpus(0, 0), HostAmount(15_000, 0)) == pytest.approx(0.5)
    assert found.stranded(gpus(0, 0), HostAmount(-1, 0)) > found.stranded(gpus(0, 0), HostAmount(20_000, 0)) + 1


def test_a_gpu_without_cores_is_stranded_however_much_memory_it_has() -> None:
    popular = Fragmentation(workload(asks(milli=100, cores=50)))
    usage = gpus(0)
    half = replace(usage, gpus=(GpuUsage(usage.gpus[0].device, 1, 100, 60),))
    assert popular.stranded(half, None) == pytest.approx(0.4)


def test_a_class_that_asks_for_links_needs_its_gpus_in_one_island() -> None:
    usage = gpus(0, 500, 0, 500)
    uuids = [gpu.device.uuid for gpu in usage.gpus]
    scores = {
        a: {b: 100 if i // 2 == j // 2 else 10 for j, b in enumerate(uuids) if i != j} for i, a in enumerate(uuids)
    }
    usage = replace(usage, node=replace(usage.node, pair_scores=scores))
    assert list(islands(usage.node)) == [[0, 1], [2, 3]]
    pair = asks(count=2)
    assert Fragmentation(workload(pair)).stranded(usage, None) == pytest.approx(1.0)
    assert Fragmentation(workload(replace(pair, linked=True))).stranded(usage, None) == pytest.approx(3.0)


def test_gpus_that_serve_nobody_are_no_loss() -> None:
    """Of a GPU that is ill, cordoned or out of slots nothing is left that could be stranded."""
    usage = gpus(0)
    ill: Device = replace(usage.gpus[0].device, healthy=False)
    assert Fragmentation(workload(asks())).stranded(replace(usage, gpus=(GpuUsage(ill),)), None) == 0


def test_a_small_pod_goes_where_it_breaks_no_whole_gpu() -> None:
    nodes = {"full": gpus(0, 0), "half": gpus(500, 0)}
    small = fgd(request(pod(container(gpu=1, gpumem=500))))
    decision = decide(small, Snapshot(nodes=nodes, workload=workload(asks(), class_of(small))), sorted(nodes))
    assert decision.node == "half"
    assert decision.levels["half"] > 50 > decision.levels["full"]


def test_a_pod_without_much_cpu_leaves_the_node_with_cpu_to_others() -> None:
    nodes = {"much": gpus(0, 0), "little": gpus(0, 0)}
    hosts = {"much": HostAmount(20_000, 0), "little": HostAmount(4_000, 0)}
    light = replace(fgd(request(pod(container(gpu=1)))), host=HostAmount(1000, 0))
    popular = workload(asks(cpu_milli=10_000), per_gpu=HostAmount(10_000, 0))
    cluster = Snapshot(nodes=nodes, hosts=hosts, workload=popular)
    assert decide(light, cluster, ["much", "little"]).node == "little"


def test_a_pod_that_may_go_anywhere_leaves_gpus_that_others_must_have() -> None:
    usage = gpus(0)
    other = replace(usage.gpus[0].device, type="NVIDIA T4")
    nodes = {"a": NodeUsage(node=RegisteredNode(name="a", devices=(other,)), gpus=(GpuUsage(other),)), "b": usage}
    popular = replace(workload(asks()), pressure={"NVIDIA T4": 1.5, usage.gpus[0].device.type: 0.5})
    asked = fgd(request(pod(container(gpu=1))))
    assert decide(asked, Snapshot(nodes=nodes, workload=popular), ["a", "b"]).node == "b"


def test_without_a_word_on_pods_the_fullest_node_is_taken() -> None:
    nodes = {"empty": gpus(0, 0), "full": gpus(500, 0)}
    asked = fgd(request(pod(container(gpu=1, gpumem=100), annotations={keys.NODE_POLICY: "fgd"})))
    assert decide(asked, Snapshot(nodes=nodes), sorted(nodes)).node == "full"
