from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from deviceplugin.immediate.proof import (
    NodeView,
    NoneProven,
    ProvenContainer,
    Served,
    consumed,
    is_finished,
    overtaken_phase,
    prove,
    settlement,
)
from deviceplugin.records.holdings import Witness
from proto.annotations.keys import BIND_PHASE, DEVICES_ALLOCATED, DEVICES_TO_ALLOCATE, POD_NODE
from proto.annotations.node_lock import BindPhase, NodeLock
from proto.devices import Device, DeviceUUID
from proto.kubernetes.objects import Pod
from tests.deviceplugin.gpus import INVENTORY, NODE, A, B, a100, bound_pod, share

GPU = "nvidia.com/gpu"
T0 = datetime(2030, 1, 1, tzinfo=UTC)
ONE = (share(A),)
TWO = (share(A), share(B))


def asked(
    ids: int,
    *pods: Pod,
    lock: str = "",
    served: Served | None = None,
    recorded: Witness | None = None,
    inventory: Mapping[DeviceUUID, Device] = INVENTORY,
) -> ProvenContainer | NoneProven:
    holder = NodeLock(taken_at=T0, namespace="default", pod=lock) if lock else None
    view = NodeView(
        name=NODE, resource=GPU, pods=pods, lock=holder, inventory=inventory, remembered=served or {}, recorded=recorded
    )
    return prove(view, ids)


def refusal(answer: ProvenContainer | NoneProven) -> NoneProven:
    assert isinstance(answer, NoneProven), answer
    return answer


def test_the_only_waiting_pod_is_served() -> None:
    pod = bound_pod("a", (ONE,))
    assert asked(1, pod) == ProvenContainer(pod, 0, ONE)


def test_the_pod_of_the_lock_is_served() -> None:
    first, second = bound_pod("a", (ONE,)), bound_pod("b", (ONE,))
    assert asked(1, first, second, lock="b") == ProvenContainer(second, 0, ONE)


def test_the_lock_is_not_believed_while_another_pod_may_be_asking_for_as_many() -> None:
    """It expired and was taken again before the first pod was served, or that pod was bound without it."""
    first, second = bound_pod("a", (ONE,)), bound_pod("b", ((share(B),),))
    for pod in (first, second):
        pod.spec.containers[0].resources.limits[GPU] = "1"
    answer = refusal(asked(1, first, second, lock="b"))
    assert "default/a" in answer.sentence
    assert (answer.may_change, answer.pod) == (True, None)
    assert asked(1, first, second, lock="b", served={"uid-a": frozenset({0})}) == ProvenContainer(
        second, 0, (share(B),)
    )


def test_a_pod_for_which_hamis_scheduler_takes_no_lock_is_named_with_the_reason() -> None:
    locked, init_only = bound_pod("a", (ONE,)), bound_pod("b", ((share(B),), ()), init=1)
    locked.spec.containers[0].resources.limits[GPU] = "1"
    init_only.spec.init_containers[0].resources.limits[GPU] = "1"
    answer = refusal(asked(1, locked, init_only, lock="a"))
    assert answer.sentence.endswith("; HAMi's scheduler takes no lock for GPUs of init containers only: default/b")
    assert "takes no lock" not in refusal(asked(1, locked, bound_pod("c", (ONE,)), lock="")).sentence


def test_two_candidates_without_a_lock_are_refused_by_name() -> None:
    answer = refusal(asked(1, bound_pod("a", (ONE,)), bound_pod("b", (ONE,))))
    assert "default/a and default/b" in answer.sentence
    assert answer.may_change
    assert answer.pod is None


def test_another_number_of_gpus_tells_two_pods_apart() -> None:
    first, second = bound_pod("a", (ONE,)), bound_pod("b", (TWO,))
    assert asked(2, first, second) == ProvenContainer(second, 0, TWO)


def test_containers_are_served_in_order_and_those_without_gpus_are_passed_over() -> None:
    pod = bound_pod("a", (ONE, (), TWO, ()), init=1)
    assert asked(1, pod) == ProvenContainer(pod, 0, ONE)
    assert asked(2, pod, served={"uid-a": frozenset({0})}) == ProvenContainer(pod, 2, TWO, frozenset({0}))
    assert refusal(asked(2, pod, served={"uid-a": frozenset({0, 2})})).may_change


def test_a_container_is_known_by_its_number_of_gpus_when_an_earlier_answer_was_forgotten() -> None:
    pod = bound_pod("a", (TWO, ONE))
    assert asked(1, pod) == ProvenContainer(pod, 1, ONE)


def test_kubelets_record_says_who_was_served() -> None:
    pod = bound_pod("a", (ONE, ONE))
    assert asked(1, pod, recorded={"uid-a": frozenset({"c0"})}) == ProvenContainer(pod, 1, ONE, frozenset({0}))
    assert asked(1, pod, recorded={}, served={"uid-a": frozenset({0})}) == ProvenContainer(pod, 1, ONE, frozenset({0}))
    assert asked(1, pod, recorded={}) == ProvenContainer(pod, 0, ONE)


def test_an_answer_that_kubelet_lost_is_given_again_though_the_pod_was_told_success() -> None:
    pod = bound_pod("a", (ONE,), changed={BIND_PHASE: "success", DEVICES_TO_ALLOCATE: ";"})
    assert asked(1, pod, recorded={}) == ProvenContainer(pod, 0, ONE)
    assert refusal(asked(1, pod, recorded={"uid-a": frozenset({"c0"})})).may_change
    assert refusal(asked(1, pod)).may_change


def test_a_container_consumed_in_the_annotation_is_not_served_again() -> None:
    pod = bound_pod("a", (ONE, TWO), changed={DEVICES_TO_ALLOCATE: f";{consumed_two()};;"})
    assert asked(2, pod) == ProvenContainer(pod, 1, TWO, frozenset({0}))


def consumed_two() -> str:
    return consumed(bound_pod("x", (TWO,)), frozenset(), GPU).rstrip(";")


def test_the_lock_of_a_pod_that_was_served_no_longer_says_anything() -> None:
    done, next_pod = bound_pod("a", (ONE,)), bound_pod("b", (ONE,))
    assert asked(1, done, next_pod, lock="a", served={"uid-a": frozenset({0})}) == ProvenContainer(next_pod, 0, ONE)
    running = bound_pod("a", (ONE,), phase="Running", changed={BIND_PHASE: "success"})
    assert asked(1, running, next_pod, lock="a") == ProvenContainer(next_pod, 0, ONE)


def test_a_lock_naming_a_pod_not_seen_yet_is_waited_for() -> None:
    answer = refusal(asked(1, bound_pod("a", (ONE,)), lock="b"))
    assert "default/b" in answer.sentence
    assert answer.may_change


def test_a_namesake_of_the_locks_pod_is_not_its_pod() -> None:
    pod = bound_pod("b", (ONE,))
    lock = NodeLock(taken_at=T0, namespace="default", pod="b")
    view = NodeView(name=NODE, resource=GPU, pods=(pod,), lock=lock, lock_uid="uid-b", inventory=INVENTORY)
    assert prove(view, 1) == ProvenContainer(pod, 0, ONE)
    assert "default/b, which waits for no GPUs here" in refusal(prove(replace(view, lock_uid="uid-before"), 1)).sentence


def test_another_number_of_gpus_than_decided_is_refused() -> None:
    answer = refusal(asked(2, bound_pod("a", (ONE,)), lock="a"))
    assert "1 GPUs were decided for the containers still waiting, but kubelet asks for 2" in answer.sentence


@pytest.mark.parametrize(
    "pod",
    [
        bound_pod("a", (ONE,), phase="Running"),
        bound_pod("a", (ONE,), changed={BIND_PHASE: "failed"}),
        bound_pod("a", (ONE,), changed={POD_NODE: "node-2"}),
        bound_pod("a", ((),)),
    ],
)
def test_a_pod_that_waits_for_nothing_here_is_no_candidate(pod: Pod) -> None:
    assert refusal(asked(1, pod)).may_change


@pytest.mark.parametrize(
    ("pod", "inventory", "problem"),
    [
        (bound_pod("a", (ONE,), changed={DEVICES_ALLOCATED: f"{A},NVIDIA,1,1:;"}), INVENTORY, "differ"),
        (bound_pod("a", (ONE,), changed={DEVICES_TO_ALLOCATE: "nonsense;"}), INVENTORY, "container 0"),
        (bound_pod("a", ((share(DeviceUUID("GPU-x")),),)), INVENTORY, "GPU-x is not a GPU of this node"),
        (bound_pod("a", ((share(A, 40961),),)), INVENTORY, "40961 MiB"),
        (bound_pod("a", ((share(A, 1, 101),),)), INVENTORY, "101 %"),
        (bound_pod("a", ((share(A), share(A)),)), INVENTORY, "twice"),
        (bound_pod("a", (ONE,)), {A: a100(A, 0, healthy=False)}, "unhealthy"),
    ],
)
def test_a_proven_pod_that_must_not_be_served_is_named(
    pod: Pod, inventory: Mapping[DeviceUUID, Device], problem: str
) -> None:
    answer = refusal(asked(2 if problem == "twice" else 1, pod, inventory=inventory))
    assert problem in answer.sentence
    assert "default/a" in answer.sentence
    assert answer.pod == pod
    assert not answer.may_change


def test_what_is_served_is_erased_for_this_very_pod() -> None:
    pod = bound_pod("a", (ONE, TWO))
    assert not is_finished(pod, frozenset({0}), GPU)
    assert is_finished(pod, frozenset({0, 1}), GPU)
    assert settlement(pod, frozenset({0, 1}), BindPhase.SUCCESS, GPU) == {
        "metadata": {"uid": "uid-a", "annotations": {BIND_PHASE: "success", DEVICES_TO_ALLOCATE: ";;"}}
    }
    assert settlement(pod, frozenset(), BindPhase.FAILED, GPU) == {
        "metadata": {"uid": "uid-a", "annotations": {BIND_PHASE: "failed"}}
    }


def test_an_entry_that_stands_too_far_left_belongs_to_the_container_that_asks_for_gpus() -> None:
    """HAMi 2.10 leaves out the entries of containers without GPUs."""
    pod = bound_pod("a", (TWO, ()))
    plain, asking = pod.spec.containers
    asking.resources.limits[GPU] = "2"
    assert asked(2, pod) == ProvenContainer(pod, 1, TWO)
    plain.resources.limits[GPU] = "2"
    del asking.resources.limits[GPU]
    assert asked(2, pod) == ProvenContainer(pod, 0, TWO)


@pytest.mark.parametrize(
    ("phase", "due"), [("Pending", None), ("Running", BindPhase.SUCCESS), ("Failed", BindPhase.FAILED)]
)
def test_a_pod_that_got_past_admission_unrecorded_is_caught_up_with(phase: str, due: BindPhase | None) -> None:
    assert overtaken_phase(bound_pod("a", (ONE,), phase=phase)) == due


def undecided(name: str, gpus: str = "1", phase: str = "Pending") -> Pod:
    """Bound past our scheduler, or one whose annotations somebody took."""
    pod = bound_pod(name, (ONE,), phase=phase)
    pod.metadata.annotations.clear()
    pod.spec.containers[0].resources.limits[GPU] = gpus
    return pod


@pytest.mark.parametrize("lock", ["", "a"])
@pytest.mark.parametrize("recorded", [None, {}, {"uid-a": frozenset({"c9"})}])
def test_a_pod_that_nothing_was_decided_for_may_be_the_one_that_asks(lock: str, recorded: Witness | None) -> None:
    """Else it would be given the GPUs of the pod that waits, and that one none."""
    pod = bound_pod("a", (ONE,))
    answer = refusal(asked(1, pod, undecided("stranger"), lock=lock, recorded=recorded))
    assert "default/stranger" in answer.sentence
    assert (answer.may_change, answer.pod) == (True, None)


@pytest.mark.parametrize(
    "stranger",
    [undecided("stranger", "2"), undecided("stranger", phase="Failed"), undecided("stranger", phase="Running")],
)
def test_who_cannot_be_asking_is_in_nobodys_way(stranger: Pod) -> None:
    pod = bound_pod("a", (ONE,))
    assert asked(1, pod, stranger) == ProvenContainer(pod, 0, ONE)


def test_a_stranger_that_kubelet_has_served_asks_no_more() -> None:
    pod = bound_pod("a", (ONE,))
    recorded = {"uid-stranger": frozenset({"c0"})}
    assert asked(1, pod, undecided("stranger"), recorded=recorded) == ProvenContainer(pod, 0, ONE)
