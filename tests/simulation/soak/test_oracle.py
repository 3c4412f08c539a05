"""The oracle of the soak finds what it is there for."""

from typing import Any

from simulation.soak.oracle import ledger_differences, overbooked, register_differences, wrongly_given
from tests.builders import Json, as_json, container, pod

A, B = "GPU-a", "GPU-b"
CAPACITY = {A: (10, 40_960, 100), B: (10, 40_960, 100)}


def holding(decision: str, name: str = "p") -> Json:
    annotations = {"hami.io/vgpu-devices-allocated": decision}
    return as_json(pod(container("main"), name=name, annotations=annotations, node_name="n", phase="Running"))


def part(mib: int = 20_000, uuid: str = A) -> str:
    return f"{uuid},NVIDIA,{mib},30:;"


def limits(mib: int = 20_000, visible: str = A) -> dict[str, str]:
    return {
        "NVIDIA_VISIBLE_DEVICES": visible,
        "CUDA_DEVICE_MEMORY_LIMIT_0": f"{mib}m",
        "CUDA_DEVICE_SM_LIMIT_0": "30",
    }


def test_two_pods_that_fit_are_no_overbooking() -> None:
    assert list(overbooked([holding(part()), holding(part())], CAPACITY)) == []


def test_memory_held_beyond_a_gpu_is_an_overbooking() -> None:
    (found,) = overbooked([holding(part()), holding(part(20_961))], CAPACITY)
    assert found.startswith("GPU-a is held with 2 replicas, 40961 MiB, 60 %")


def test_a_gpu_that_no_node_has_is_an_overbooking() -> None:
    assert list(overbooked([holding(part(uuid="GPU-c"))], CAPACITY)) == ["GPU-c is held by a pod, and no node has it"]


def test_a_pod_that_has_ended_holds_nothing() -> None:
    ended = holding(part(99_999)) | {"status": {"phase": "Succeeded"}}
    assert list(overbooked([ended], CAPACITY)) == []


def test_a_container_with_its_decision_is_right() -> None:
    assert list(wrongly_given(holding(part()), "main", limits(), CAPACITY)) == []


def test_a_container_with_another_gpu_is_wrong() -> None:
    (found,) = wrongly_given(holding(part()), "main", limits(visible=B), CAPACITY)
    assert found == "pod p, container main: decided ['GPU-a'], got ['GPU-b']"


def test_a_container_with_another_limit_is_wrong() -> None:
    assert len(list(wrongly_given(holding(part()), "main", limits(20_001), CAPACITY))) == 1


def test_a_part_of_a_gpu_without_limits_is_wrong_and_a_whole_one_is_right() -> None:
    free = {"NVIDIA_VISIBLE_DEVICES": A}
    assert len(list(wrongly_given(holding(part()), "main", free, CAPACITY))) == 1
    assert list(wrongly_given(holding(f"{A},NVIDIA,40960,0:;"), "main", free, CAPACITY)) == []


def test_a_container_without_a_decision_may_get_no_gpu() -> None:
    assert list(wrongly_given(holding(";"), "main", {"NVIDIA_VISIBLE_DEVICES": "void"}, CAPACITY)) == []
    assert len(list(wrongly_given(holding(";"), "main", limits(), CAPACITY))) == 1


def test_a_ledger_that_counts_something_else_differs() -> None:
    gpu = {"device": {"uuid": A}, "replicas": 1, "memory_mib": 20_000, "cores": 30}
    snapshot = {"nodes": [{"gpus": [gpu]}]}
    assert list(ledger_differences(snapshot, [holding(part())])) == []
    assert len(list(ledger_differences(snapshot, []))) == 1


def test_a_gpu_that_is_published_with_other_amounts_or_ill_differs() -> None:
    def node(rows: str) -> dict[str, Any]:
        return {"metadata": {"name": "n", "annotations": {"hami.io/node-nvidia-register": rows}}}

    row = '{"id":"GPU-a","count":10,"devmem":40960,"devcore":100,"health":true}'
    assert list(register_differences(node(f"[{row}]"), [A], CAPACITY)) == []
    assert len(list(register_differences(node(f"[{row.replace('true', 'false')}]"), [A], CAPACITY))) == 1
    assert len(list(register_differences(node(f"[{row.replace('40960', '40961')}]"), [A], CAPACITY))) == 1
    assert len(list(register_differences(node(f"[{row}]"), [A, B], CAPACITY))) == 1
