from collections.abc import Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.apiserver import in_order
from deviceplugin.slots.allocator import shares_in_turn
from proto.devices import DeviceShare
from proto.kubernetes.objects import Container, ContainerStatus, Pod, Resources
from tests.deviceplugin.gpus import A, B, bound_pod, share

GPU = "nvidia.com/gpu"
ONE, OTHER, TWO = (share(A),), (share(B),), (share(A), share(B))
P, Q, R = bound_pod("p", (ONE,)), bound_pod("q", (OTHER,)), bound_pod("r", (TWO, ONE))


def test_the_first_pod_that_waits_for_so_many_is_served() -> None:
    assert shares_in_turn([P, Q, R], {}, 1, GPU) == ONE
    assert shares_in_turn([Q, P, R], {}, 1, GPU) == OTHER
    assert shares_in_turn([P, Q, R], {}, 2, GPU) == TWO
    assert shares_in_turn([P, Q, R], {}, 3, GPU) is None


def test_whoever_stands_in_the_checkpoint_was_served_container_by_container() -> None:
    assert shares_in_turn([P, Q], {"uid-p": frozenset({"c0"})}, 1, GPU) == OTHER
    assert shares_in_turn([R, Q], {"uid-r": frozenset({"c0"})}, 1, GPU) == ONE
    assert shares_in_turn([R, Q], {"uid-r": frozenset({"c0", "c1"})}, 1, GPU) == OTHER
    assert shares_in_turn([P], {"uid-p": frozenset({"c0"})}, 1, GPU) is None


def test_a_pod_that_kubelet_has_gone_past_was_refused_by_it() -> None:
    after = bound_pod("after", (OTHER,))
    assert shares_in_turn([P, Q, after], {"uid-q": frozenset({"c0"})}, 1, GPU) == OTHER


def test_a_pod_that_a_kubelet_after_a_restart_admits_out_of_order_is_found_all_the_same() -> None:
    assert shares_in_turn([P, Q], {"uid-q": frozenset({"c0"})}, 1, GPU) == ONE


def test_pods_that_have_ended_wait_for_nothing() -> None:
    assert shares_in_turn([bound_pod("p", (ONE,), phase="Failed"), Q], {}, 1, GPU) == OTHER


def test_the_turn_of_a_pod_that_nothing_was_decided_for_is_nobody_elses() -> None:
    stranger = bound_pod("stranger", (ONE,))
    stranger.metadata.annotations.clear()
    stranger.spec.containers = [Container(name="c0", resources=Resources(limits={GPU: "1"}))]
    assert shares_in_turn([stranger, P], {}, 1, GPU) == ()


@given(
    st.lists(st.lists(st.sampled_from([ONE, OTHER, TWO]), min_size=1, max_size=3), min_size=1, max_size=6),
    st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_kubelet_going_through_the_pods_in_their_order_is_answered_for_each_container(
    decided: Sequence[Sequence[tuple[DeviceShare, ...]]], refused: Sequence[bool]
) -> None:
    """A pod that it refuses, of which it has not told yet, misleads the next answer at most."""
    pods = [bound_pod(f"p{at}", tuple(shares)) for at, shares in enumerate(decided)]
    served: dict[str, frozenset[str]] = {}
    misled = False
    for pod, shares, is_refused in zip(pods, decided, refused, strict=False):
        if is_refused:
            misled = True
            continue
        for at, held in enumerate(shares):
            answer = shares_in_turn(pods, served, len(held), GPU)
            assert misled or answer == held
            served[pod.metadata.uid] = served.get(pod.metadata.uid, frozenset()) | {f"c{at}"}
            misled = False


def test_listed_pods_keep_their_places_and_new_ones_follow_in_the_order_of_their_binding() -> None:
    def at(pod: Pod, version: int, *, told: bool = False) -> Pod:
        changed = msgspec.convert(msgspec.to_builtins(pod), Pod)
        changed.metadata.resource_version = str(version)
        if told:
            changed.status.container_statuses = [ContainerStatus(name="c0")]
        return changed

    known = {"uid-q": Q, "uid-gone": P}
    listed = [at(P, 30), at(Q, 90), at(R, 70, told=True), at(bound_pod("s", (ONE,)), 20)]
    assert list(in_order(listed, known)) == ["uid-q", "uid-r", "uid-s", "uid-p"]
