from typing import Any

from proto.kubernetes.objects import Container
from simulation.kubelet.container import CreatedContainer
from tests.builders import Json, as_json, pod
from tests.faults.observer import Observer

CAPACITY = {"GPU-a": (10, 1000, 100), "GPU-b": (10, 1000, 100)}


def holding(name: str, gpu: str, mib: int) -> Json:
    annotations = {"hami.io/vgpu-devices-allocated": f"{gpu},NVIDIA,{mib},0:;"}
    return as_json(pod(Container(name="main"), name=name, uid=name, annotations=annotations, node_name="n"))


def container(gpu: str, mib: int) -> CreatedContainer:
    env = {"NVIDIA_VISIBLE_DEVICES": gpu, "CUDA_DEVICE_MEMORY_LIMIT_0": f"{mib}m", "CUDA_DEVICE_SM_LIMIT": "0"}
    empty: Any = ()
    return CreatedContainer(
        name="main", phase="app", device_ids=(), env=env, mounts=empty, devices=empty, annotations={}, cdi_devices=()
    )


def problems(pods: list[dict[str, Any]], containers: dict[str, CreatedContainer]) -> list[str]:
    observer = Observer(lambda: pods, lambda: {uid: {"main": one} for uid, one in containers.items()}, CAPACITY)
    observer.look()
    return list(observer.problems)


def test_containers_with_what_their_pods_were_decided_are_no_problem() -> None:
    pods = [holding("p", "GPU-a", 600), holding("q", "GPU-b", 600)]
    assert problems(pods, {"p": container("GPU-a", 600), "q": container("GPU-b", 600)}) == []


def test_pods_over_the_capacity_of_a_gpu_are_seen_before_they_have_containers() -> None:
    (problem,) = problems([holding("p", "GPU-a", 600), holding("q", "GPU-a", 600)], {})
    assert problem.startswith("GPU-a is held with 2 replicas, 1200 MiB")


def test_containers_over_the_capacity_of_a_gpu_are_seen_also_without_their_pods() -> None:
    (problem,) = problems([], {"p": container("GPU-a", 600), "q": container("GPU-a", 600)})
    assert problem.startswith("containers were given (2, 1200, 0) of GPU-a, which has (10, 1000, 100)")


def test_a_container_with_anothers_gpu_is_seen() -> None:
    assert problems([holding("p", "GPU-a", 600)], {"p": container("GPU-b", 600)}) == [
        "pod p, container main: decided ['GPU-a'], got ['GPU-b']"
    ]
