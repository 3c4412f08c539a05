"""Which pods usually come is learned from the pods that are seen."""

from dataclasses import replace

import pytest

from proto.annotations import keys
from proto.kubernetes.requests import HostAmount
from scheduler_ext.cluster.registered import RegisteredNode
from scheduler_ext.cluster.workload import MOST_CLASSES, NO_WORKLOAD, Classes, class_of, workload_of
from scheduler_ext.requests import GpuRequest
from tests.scheduler_ext.gpus import container, device, pod, request

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
