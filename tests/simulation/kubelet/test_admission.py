"""The stand-in refuses a pod as kubelet does when the Node has too little of what its pods ask for."""

import pytest

from proto.kubernetes.objects import Container, Node, NodeStatus, ObjectMeta, Pod, PodSpec, PodStatus, Resources
from simulation.kubelet.device_ids import AdmissionRefused, check_totals

NODE = Node(status=NodeStatus(allocatable={"nvidia.com/gpumem": "1k", "nvidia.com/gpu": "1", "cpu": "100m"}))


def asking(phase: str = "Running", **amounts: int) -> Pod:
    limits: dict[str, str | int | float] = {f"nvidia.com/{name}": amount for name, amount in amounts.items()}
    return Pod(
        metadata=ObjectMeta(name="p"),
        spec=PodSpec(containers=[Container(name="c", resources=Resources(limits=limits))]),
        status=PodStatus(phase=phase),
    )


def test_what_fits_the_totals_is_admitted_and_what_does_not_is_named_with_numbers() -> None:
    check_totals(asking(gpumem=400), [asking(gpumem=600)], NODE, ["nvidia.com/gpu"])
    with pytest.raises(AdmissionRefused) as refused:
        check_totals(asking(gpumem=401), [asking(gpumem=600)], NODE, ["nvidia.com/gpu"])
    assert refused.value.reason == "OutOfnvidia.com/gpumem"
    assert str(refused.value) == (
        "Node didn't have enough resource: nvidia.com/gpumem, requested: 401, used: 600, capacity: 1000"
    )


def test_devices_ended_pods_and_what_the_node_does_not_have_do_not_count() -> None:
    check_totals(asking(gpu=5, gpucores=500, gpumem=900), [asking("Failed", gpumem=900)], NODE, ["nvidia.com/gpu"])
