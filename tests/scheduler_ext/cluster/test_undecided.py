"""What is held though no annotation, or no pod any more, says so."""

import pytest

from proto.annotations import keys
from proto.kubernetes.objects import ContainerState, ContainerStateTerminated, ContainerStatus, Pod
from scheduler_ext.cluster.holdings import outlives
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.scheduling.decide import decide
from tests.scheduler_ext.cluster.ledgers import bound, ledger, used
from tests.scheduler_ext.gpus import container, device, node, pod, request


def past(name: str, gpus: int, phase: str = "Pending") -> Pod:
    return pod(container(gpu=gpus), name=name, node_name="n", phase=phase)


def test_the_ids_of_a_pod_past_the_scheduler_count_until_it_ends() -> None:
    made = Ledger()
    made.replace_nodes([node("n", [device(number, slots=2) for number in range(2)])])
    made.apply_pod(past("a", 1))
    assert used(made) == [(1, 0, 0), (0, 0, 0)]
    made.apply_pod(past("b", 2))
    assert used(made) == [(2, 0, 0), (1, 0, 0)]
    wanted = pod(container(gpu=2), name="w")
    assert decide(request(wanted), made.snapshot(), ["n"]).node is None
    made.apply_pod(past("a", 1, phase="Failed"))
    assert used(made) == [(1, 0, 0), (1, 0, 0)]
    assert decide(request(wanted), made.snapshot(), ["n"]).node == "n"
    made.remove_pod("uid-b")
    assert used(made) == [(0, 0, 0), (0, 0, 0)]


def test_more_ids_than_there_are_fill_the_node_and_no_more() -> None:
    made = Ledger()
    made.replace_nodes([node("n", [device(number, slots=1) for number in range(2)])])
    made.apply_pod(past("a", 100_000_000))
    assert used(made) == [(1, 0, 0), (1, 0, 0)]


def test_one_that_runs_all_the_same_may_use_any_gpu_of_the_node() -> None:
    made = ledger()
    made.apply_pod(past("a", 1, phase="Running"))
    assert used(made) == [(10, 40960, 100)] * 2
    assert "all GPUs of the node count as full" in made.pod_problem("uid-a")


def test_a_pod_that_asks_for_no_gpu_holds_none() -> None:
    made = ledger()
    made.apply_pod(pod(container(), name="cpu", node_name="n", phase="Running"))
    assert used(made) == [(0, 0, 0)] * 2
    assert made.holdings() == {}


@pytest.mark.parametrize("text", ["G0,NVIDIA,1000,10:;", "G0,NVIDIA"])
def test_a_holding_ends_with_its_pod_not_with_its_annotation(text: str) -> None:
    made = ledger()
    made.apply_pod(bound("a", text))
    before = used(made)
    assert before[0] != (0, 0, 0)
    for _ in range(2):
        made.apply_pod(past("a", 1, phase="Running"))
        assert used(made) == before
    assert f"{keys.DEVICES_ALLOCATED} was removed" in made.pod_problem("uid-a")
    made.replace_pods([past("a", 1, phase="Running")])
    assert used(made) == before
    made.apply_pod(bound("a", "G1,NVIDIA,500,5:;"))
    assert used(made) == [(0, 0, 0), (1, 500, 5)]
    made.apply_pod(past("a", 1, phase="Succeeded"))
    assert used(made) == [(0, 0, 0)] * 2


def with_container(state: ContainerState, phase: str = "Running") -> Pod:
    found = bound("a", "G0,NVIDIA,1000,10:;", phase=phase)
    found.status.container_statuses = [ContainerStatus(name="c", state=state)]
    return found


def test_only_a_pod_that_was_deleted_while_its_containers_ran_outlives_its_deletion() -> None:
    running, ended = ContainerState(running={}), ContainerState(terminated=ContainerStateTerminated())
    assert outlives(with_container(running))
    assert not outlives(with_container(ended))
    assert not outlives(with_container(running, phase="Failed"))
    assert not outlives(bound("a", "G0,NVIDIA,1000,10:;"))


def test_a_pod_deleted_by_force_keeps_its_gpus_until_its_time() -> None:
    made = ledger()
    made.apply_pod(bound("a", "G0,NVIDIA,1000,10:;"))
    made.remove_pod("uid-a", until=120.0)
    made.replace_pods([])
    made.expire(119.0)
    assert used(made) == [(1, 1000, 10), (0, 0, 0)]
    made.expire(120.0)
    assert used(made) == [(0, 0, 0)] * 2
    assert made.holdings() == {}


def test_a_pod_that_is_listed_again_after_its_deletion_holds_its_gpus_past_that_time() -> None:
    """As after etcd was restored from a copy: same pod, same uid."""
    made = ledger()
    made.apply_pod(bound("a", "G0,NVIDIA,1000,10:;"))
    made.remove_pod("uid-a", until=120.0)
    made.replace_pods([bound("a", "G0,NVIDIA,1000,10:;")])
    made.expire(120.0)
    assert used(made) == [(1, 1000, 10), (0, 0, 0)]
    made.replace_pods([])
    assert used(made) == [(0, 0, 0)] * 2
