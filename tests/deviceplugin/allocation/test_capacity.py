"""What the node refuses although a scheduler decided it."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.allocation.decision import SecondCount, has_begun, lives
from proto.annotations.keys import DEVICES_ALLOCATED
from proto.devices import Device, DeviceUUID, PodShares
from proto.kubernetes.objects import ContainerStatus, Pod
from scheduler_ext.cluster.accounting import Footprint, effective
from scheduler_ext.requests import container_kinds
from tests.deviceplugin.gpus import INVENTORY, A, B, bound_pod, share

GPU = "nvidia.com/gpu"
WHOLE = (share(A, 40960, 100),)


def asked(pod: Pod, *others: Pod) -> str:
    """All of which were served."""
    return beside(pod, (pod, *others), {other.metadata.uid for other in others})


def beside(pod: Pod, pods: Sequence[Pod], served: Container[str], gpus: Mapping[DeviceUUID, Device] = INVENTORY) -> str:
    return SecondCount(GPU).exceeded(pod, {each.metadata.uid: each for each in pods}, gpus, served)


def test_what_a_gpu_has_may_be_held_and_not_one_mebibyte_or_percent_more() -> None:
    held = bound_pod("held", ((share(A, 40000, 60),),))
    assert asked(bound_pod("p", ((share(A, 960, 40),),)), held) == ""
    assert asked(bound_pod("p", ((share(A, 961, 0),),)), held) == (
        f"{A} has 40960 MiB, 100 % and room for 3 containers, but 40961 MiB, 60 % for 2 were decided: for this pod "
        "(961 MiB, 0 %) beside default/held (40000 MiB, 60 %)"
    )
    assert "41 %) beside default/held" in asked(bound_pod("p", ((share(A, 1, 41),),)), held)
    assert asked(bound_pod("p", ((share(B, 40960, 100),),)), held) == ""


def test_a_share_without_a_size_is_the_whole_gpu() -> None:
    assert asked(bound_pod("p", ((share(A, 0, 0),),)), bound_pod("q", ((share(A, 1, 0),),))).startswith(
        f"{A} has 40960"
    )


def test_containers_are_counted_too_and_many_pods_are_named_with_numbers() -> None:
    others = [bound_pod(f"q{n}", ((share(A, 10, 1),),)) for n in range(10)]
    problem = asked(bound_pod("p", ((share(A, 10, 1),),)), *others)
    assert "110 MiB, 11 % for 11 were decided" in problem
    assert problem.endswith("default/q3 (10 MiB, 1 %) and 6 more")


def test_one_pod_may_ask_for_too_much_all_by_itself() -> None:
    assert asked(bound_pod("p", ((share(A, 30000, 0),), (share(A, 20000, 0),)))).endswith(
        "for this pod (50000 MiB, 0 %)"
    )


def test_init_containers_run_before_the_app_containers_and_beside_earlier_sidecars() -> None:
    pod = bound_pod("p", (WHOLE, WHOLE), init=1)
    assert asked(pod) == ""
    pod.spec.init_containers[0].restart_policy = "Always"
    assert asked(pod) != ""


def test_an_init_container_that_has_ended_still_counts_for_a_new_sandbox_runs_it_again() -> None:
    running = bound_pod("q", (WHOLE, (share(B),)), init=1, phase="Running")
    assert f"{A} has 40960 MiB" in asked(bound_pod("p", ((share(A, 1, 0),),)), running)


def test_others_count_from_when_they_were_served_or_created_until_they_have_ended() -> None:
    own, other = bound_pod("p", (WHOLE,)), bound_pod("q", (WHOLE,))
    assert beside(own, (own, other), ()) == ""
    assert beside(own, (own, other), {"uid-q"}) != ""
    other.status.container_statuses = [ContainerStatus(name="c0", container_id="containerd://1")]
    assert beside(own, (own, other), ()) != ""
    other.status.phase = "Succeeded"
    assert beside(own, (own, other), {"uid-q"}) == ""


def test_more_than_the_hardware_is_handed_out_where_that_is_configured() -> None:
    scaled = {**INVENTORY, A: replace(INVENTORY[A], memory_mib=81920, cores=200)}
    pods = [bound_pod(name, (WHOLE,)) for name in "pq"]
    assert beside(pods[0], pods, {"uid-q"}, scaled) == ""
    assert asked(*pods) != ""


@pytest.mark.parametrize("text", ["", "nonsense", f"{A},NVIDIA"])
def test_a_decision_that_cannot_be_read_counts_nothing(text: str) -> None:
    broken = bound_pod("q", (WHOLE,))
    broken.metadata.annotations[DEVICES_ALLOCATED] = text
    assert asked(bound_pod("p", (WHOLE,)), broken) == ""
    assert asked(broken, bound_pod("p", (WHOLE,))) == ""


def test_a_pod_counts_from_the_first_container_that_was_created_to_its_end() -> None:
    pod = bound_pod("p", (WHOLE,))
    assert (lives(pod), has_begun(pod)) == (True, False)
    pod.status.container_statuses = [ContainerStatus(name="c0", container_id="containerd://1")]
    assert has_begun(pod)
    pod.metadata.deletion_timestamp = "2030-01-01T00:00:00Z"
    assert lives(pod)
    assert not lives(bound_pod("p", (WHOLE,), phase="Failed"))


SHARES = st.tuples(st.integers(1, 30000), st.integers(0, 60)).map(lambda drawn: (share(A, *drawn),))
PODS = st.lists(
    st.tuples(st.lists(SHARES, min_size=1, max_size=4), st.integers(0, 3), st.booleans()), min_size=1, max_size=4
)


@given(PODS)
def test_what_the_extender_books_within_a_gpu_is_never_refused(
    drawn: list[tuple[list[PodShares], int, bool]],
) -> None:
    pods = []
    for number, (shares, init, runs) in enumerate(drawn):
        phase = "Running" if runs else "Pending"
        pods.append(bound_pod(f"p{number}", tuple(shares), init=min(init, len(shares) - 1), phase=phase))  # type: ignore[arg-type]
    booked = Footprint()
    for pod, (shares, _, _) in zip(pods, drawn, strict=True):
        booked += effective(container_kinds(pod), tuple(shares)).get(A, Footprint())  # type: ignore[arg-type]
    fits = booked.memory_mib <= 40960 and booked.cores <= 100 and booked.replicas <= 3
    assert not fits or asked(*pods) == ""
