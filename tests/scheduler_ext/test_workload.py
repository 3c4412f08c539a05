"""Which pods usually come is learned from the pods that are seen."""

from dataclasses import replace

import pytest

from proto.annotations import keys
from proto.kubernetes.objects import Pod
from proto.kubernetes.requests import HostAmount
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.registered import RegisteredNode
from scheduler_ext.decide.fgd import Fragmentation
from scheduler_ext.requests import GpuRequest
from scheduler_ext.workload import MOST_CLASSES, MOST_COUNTED, NO_WORKLOAD, Classes, class_of, workload_of
from tests.builders import container, node, pod
from tests.scheduler_ext.gpus import device, request

SMALL = request(pod(container(gpu=1, gpumem=10_000)))
LARGE = request(pod(container(gpu=8)))
NODES = (RegisteredNode(name="a", devices=tuple(device(number, memory_mib=40_000) for number in range(4))),)


def of_type(types: str) -> GpuRequest:
    return request(pod(container(gpu=1), annotations={keys.USE_GPU_TYPE: types}))


def test_a_class_is_as_popular_as_its_pods_are_many() -> None:
    classes = Classes()
    for number in range(4):
        classes.see(f"p{number}", SMALL if number else LARGE)
    shares = {each.pods.need.count: each.share for each in classes.workload(NODES).classes}
    assert shares == pytest.approx({1: 0.75, 8: 0.25}, abs=0.001)


def test_a_pod_counts_once_however_often_it_is_seen() -> None:
    classes = Classes()
    for _ in range(3):
        classes.see("p", LARGE)
    classes.see("q", SMALL)
    assert [round(each.share, 2) for each in classes.workload(NODES).classes] == [0.5, 0.5]


def test_pods_that_came_last_count_more() -> None:
    classes = Classes()
    for number in range(20_000):
        classes.see(f"p{number}", LARGE)
    for number in range(20_000):
        classes.see(f"q{number}", SMALL)
    most = classes.workload(NODES).classes[0]
    assert most.pods == class_of(SMALL)
    assert most.share > 0.85


def test_seeds_count_as_pods_that_came_before() -> None:
    classes = Classes([(class_of(LARGE), 3.0)])
    classes.see("p", SMALL)
    assert classes.workload(NODES).classes[0].share == pytest.approx(0.75, abs=0.001)


def test_seeds_of_one_class_add_up() -> None:
    classes = Classes([(class_of(LARGE), 3.0), (class_of(SMALL), 1.0), (class_of(LARGE), 6.0)])
    assert [each.share for each in classes.workload(NODES).classes] == pytest.approx([0.9, 0.1])


def test_many_kinds_that_one_tenant_makes_up_do_not_displace_a_usual_one() -> None:
    classes = Classes()
    for number in range(500):
        classes.see(f"usual{number}", LARGE)
    for number in range(2 * MOST_CLASSES):
        classes.see(f"odd{number}", replace(SMALL, host=HostAmount(number, 0)))
    found = classes.workload(NODES).classes
    assert found[0].pods == class_of(LARGE)
    assert found[0].share > 0.8
    assert len(found) == MOST_COUNTED


def test_of_many_classes_the_rarest_is_forgotten() -> None:
    classes = Classes()
    for number in range(MOST_CLASSES + 50):
        classes.see(f"p{number}", replace(SMALL, host=HostAmount(number, 0)))
    assert len(classes) == MOST_CLASSES


def test_the_same_workload_is_handed_out_until_enough_pods_have_come() -> None:
    classes = Classes()
    for number in range(100):
        classes.see(f"p{number}", SMALL)
    first = classes.workload(NODES)
    for number in range(99):
        classes.see(f"q{number}", LARGE)
    assert classes.workload(NODES) is first
    classes.see("q99", LARGE)
    assert classes.workload(NODES) is not first


def test_without_pods_nothing_is_known() -> None:
    assert workload_of({}, NODES) is NO_WORKLOAD


def running(name: str, *, phase: str = "Running", cpu: str = "1", node_name: str = "a") -> Pod:
    asking = container(gpu=1)
    asking.resources.requests["cpu"] = cpu
    return pod(asking, name=name, phase=phase, node_name=node_name)


def popular_after(*pods: Pod) -> list[tuple[float, int]]:
    """Shares and CPU of the classes."""
    ledger = Ledger()
    ledger.replace_pods(pods)
    return [(round(each.share, 3), each.pods.host.cpu_milli) for each in ledger.workload().classes]


def test_pods_that_never_run_teach_nothing() -> None:
    waiting = [running(f"w{number}", phase="Pending", node_name="", cpu="1000") for number in range(50)]
    refused = [running(f"r{number}", phase="Failed", cpu="1000") for number in range(50)]
    starting = [running(f"s{number}", phase="Pending", cpu="1000") for number in range(50)]
    assert popular_after(*waiting, *refused, *starting, running("p")) == [(1.0, 1000)]


def test_the_order_in_which_the_pods_that_are_there_are_listed_hardly_matters() -> None:
    pods = [running(f"p{number}", cpu=str(1 + number // 100)) for number in range(200)]
    assert popular_after(*pods)[0][0] == pytest.approx(0.5, abs=0.01)
    assert sorted(cpu for _, cpu in popular_after(*pods)) == sorted(cpu for _, cpu in popular_after(*reversed(pods)))


@pytest.mark.parametrize("cpu", ["1e999", "9" * 64, "8E", "-1", "1e-999", "x"])
def test_no_amount_of_cpu_is_too_large_to_be_counted(cpu: str) -> None:
    ledger = Ledger()
    ledger.replace_nodes([node("a", [device(0)])])
    ledger.apply_pod(running("p", cpu=cpu))
    found = ledger.workload()
    assert 0 <= found.per_gpu.cpu_milli <= 10**23
    usage = ledger.nodes.usages().get("a")
    assert usage is not None
    assert Fragmentation(found).stranded(usage, HostAmount(10**22, -(10**22))) == pytest.approx(0.0, abs=1)


def test_a_pod_that_lists_many_types_is_not_learned() -> None:
    """Each list would be kept long after its pod, and gone through for every type of GPU."""
    classes = Classes()
    classes.see("p", of_type(",".join(f"a{number}" for number in range(2000))))
    classes.see("q", of_type("A100,A800,H100,H200,B200,L40S,RTX 6000"))
    assert len(classes) == 1


def test_the_pods_are_weighed_again_when_the_cluster_has_doubled() -> None:
    """Which GPUs pods compete for depends on which there are: at first often none, for no node has registered yet."""
    classes = Classes()
    for number in range(10):
        classes.see(f"p{number}", SMALL)
    assert not classes.workload(()).pressure
    first = classes.workload(NODES)
    assert first.pressure
    assert classes.workload(NODES) is first
    assert classes.workload((*NODES, *NODES)) is not first


def test_what_is_asked_beside_a_gpu_counts_parts_of_gpus() -> None:
    """A quarter of a GPU with 2 cores, and 8 GPUs with 8: 10 cores for 8.25 GPUs."""
    small, large = (
        class_of(replace(each, host=host))
        for each, host in ((SMALL, HostAmount(2000, 825)), (LARGE, HostAmount(8000, 0)))
    )
    assert workload_of({small: 1, large: 1}, NODES).per_gpu == HostAmount(round(10_000 / 8.25), 100)


def test_gpus_of_a_type_that_some_pods_must_have_are_under_more_pressure() -> None:
    other = tuple(replace(device(number), type="NVIDIA T4") for number in range(4))
    nodes = (*NODES, RegisteredNode(name="b", devices=other))
    anywhere, only_t4 = class_of(request(pod(container(gpu=1)))), class_of(of_type("T4"))
    pressure = workload_of({anywhere: 1, only_t4: 1}, nodes).pressure
    assert pressure == pytest.approx({"NVIDIA A100-SXM4-40GB": 0.5, "NVIDIA T4": 1.5})
    assert set(workload_of({anywhere: 1}, nodes).pressure.values()) == {1.0}
