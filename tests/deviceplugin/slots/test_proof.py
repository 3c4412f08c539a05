"""Who holds these ids: one fact for each way in which kubelet and the API server can be ahead of each other."""

from collections.abc import Mapping, Sequence

import msgspec
import pytest

from deviceplugin.records.holdings import Holding, ListedContainer
from deviceplugin.slots.proof import Evidence, ProvenPod, ProvenSlot, Unproven, prove_slot
from proto.annotations.keys import DEVICES_ALLOCATED
from proto.devices import ContainerShares, Device, DeviceUUID
from proto.kubernetes.objects import STATIC_UID, Pod
from tests.deviceplugin.gpus import INVENTORY, NODE, A, B, a100, bound_pod, share
from tests.deviceplugin.slots.slot_rig import as_recorded

GPU = "nvidia.com/gpu"
X, Y, Z = f"{A}-0", f"{B}-0", f"{A}-1"
ONE = (share(A),)
OTHER = (share(B),)
TWO = (share(A), share(B))
P = bound_pod("p", (ONE,))


def listed(pod: str, container: str, *ids: str) -> ListedContainer:
    return ListedContainer(namespace="default", pod=pod, container=container, ids=frozenset(ids))


def recorded(pod: str, container: str, *ids: str, resource: str = GPU) -> Holding:
    """The slot is named like the container."""
    return Holding(
        pod_uid=f"uid-{pod}",
        container_name=container,
        resource_name=resource,
        device_ids={"-1": [*ids]},
        answer=as_recorded(container),
    )


def proof(pod: Pod, *served: tuple[int, ContainerShares], slot: str = "") -> ProvenPod:
    """Each container by its own slot."""
    return ProvenPod(pod, tuple(ProvenSlot(slot or f"c{position}", position, shares) for position, shares in served))


def asked(
    *ids: str,
    pods: Sequence[Pod] = (P,),
    sees: Sequence[ListedContainer] | None = (),
    notes: Sequence[Holding] | None = (),
    read: Pod | None = None,
    inventory: Mapping[DeviceUUID, Device] = INVENTORY,
    answered: str = "",
) -> ProvenPod | Unproven:
    evidence = Evidence(
        node=NODE,
        resource=GPU,
        pods=pods,
        read=read,
        inventory=inventory,
        listed=None if sees is None else tuple(sees),
        recorded=None if notes is None else tuple(notes),
        problem="connection refused" if sees is None else "",
        named_slot=answered,
    )
    return prove_slot(frozenset(ids), evidence)


def refusal(answer: ProvenPod | Unproven) -> Unproven:
    assert isinstance(answer, Unproven), answer
    return answer


def changed(pod: Pod, *, uid: str = "", phase: str = "", deleted: bool = False, node: str = "") -> Pod:
    pod = bound_pod(pod.metadata.name, (ONE,), phase=phase or pod.status.phase)
    pod.metadata.uid = uid or pod.metadata.uid
    pod.metadata.deletion_timestamp = "2030-01-01T00:00:00Z" if deleted else None
    pod.spec.node_name = node or NODE
    return pod


def test_whom_both_witnesses_name_is_proven() -> None:
    answer = asked(X, sees=[listed("p", "c0", X)], notes=[recorded("p", "c0", X)])
    assert answer == proof(P, (0, ONE))


def test_a_static_pod_is_refused_though_its_mirror_names_the_uid_of_its_file() -> None:
    """Its author may write anything into the file; the extender decides for no static pod."""
    mirror, file = bound_pod("p", (ONE,)), "9f86d081884c7d659a2feaa0c55ad015"
    mirror.metadata.annotations[STATIC_UID] = file
    note = Holding(pod_uid=file, container_name="c0", resource_name=GPU, device_ids={"-1": [X]}, answer=None)
    answer = refusal(asked(X, pods=[mirror], sees=[listed("p", "c0", X)], notes=[note]))
    assert f"the pod with UID {file}, and the API server shows that pod with UID uid-p" in answer.sentence


def test_all_ids_count_and_no_id_more() -> None:
    answer = refusal(asked(X, sees=[listed("p", "c0", X, Y)], notes=[recorded("p", "c0", X, Y)]))
    assert answer.sentence == (
        f"kubelet asks for the container with exactly the 1 device {X}: pod-resources lists others with some of these: "
        "default/p container c0 (2); kubelet's checkpoint has none"
    )
    assert answer.may_change


def test_another_resource_of_the_same_container_proves_nothing() -> None:
    assert refusal(asked(X, notes=[recorded("p", "c0", X, resource="example.com/nic")])).may_change


def test_two_pods_of_equal_shape_are_told_apart_by_their_ids() -> None:
    pods = [bound_pod("p", (ONE,)), bound_pod("q", (OTHER,))]
    sees = [listed("p", "c0", X), listed("q", "c0", Y)]
    notes = [recorded("p", "c0", X), recorded("q", "c0", Y)]
    assert asked(X, pods=pods, sees=sees, notes=notes) == proof(pods[0], (0, ONE))
    assert asked(Y, pods=pods, sees=sees, notes=notes) == proof(pods[1], (0, OTHER))


def test_an_init_container_alone_is_proven_by_the_checkpoint() -> None:
    pod = bound_pod("p", (ONE, TWO), init=1)
    notes = [recorded("p", "c0", X), recorded("p", "c1", X, Y)]
    assert asked(X, pods=[pod], sees=[listed("p", "c1", X, Y)], notes=notes) == proof(pod, (0, ONE))


def test_an_init_container_and_the_app_container_that_has_its_ids_have_a_slot_each() -> None:
    pod = bound_pod("p", (ONE, OTHER), init=1)
    notes = [recorded("p", "c0", X), recorded("p", "c1", X)]
    answer = asked(X, pods=[pod], sees=[listed("p", "c1", X)], notes=notes)
    assert answer == proof(pod, (0, ONE), (1, OTHER))


@pytest.mark.parametrize("answer", ["", "%", "bm9uc2Vuc2U="])
def test_an_answer_without_a_slot_needs_no_spec(answer: str) -> None:
    notes = [msgspec.structs.replace(recorded("p", "c0", X), answer=answer)]
    assert asked(X, sees=[listed("p", "c0", X)], notes=notes) == ProvenPod(P, ())


def test_a_sidecar_is_listed_and_proven_like_an_app_container() -> None:
    pod = bound_pod("p", (ONE, OTHER), init=1)
    pod.spec.init_containers[0].restart_policy = "Always"
    sees = [listed("p", "c0", X), listed("p", "c1", Y)]
    assert asked(X, pods=[pod], read=pod, sees=sees, notes=None, answered="s") == proof(pod, (0, ONE), slot="s")
    assert asked(Y, pods=[pod], read=pod, sees=sees, notes=None, answered="s") == proof(pod, (1, OTHER), slot="s")


def test_a_restarted_container_of_a_running_pod_is_proven_again() -> None:
    pod = changed(P, phase="Running")
    assert asked(X, pods=[pod], sees=[listed("p", "c0", X)], notes=[recorded("p", "c0", X)]) == proof(pod, (0, ONE))


def test_without_pod_resources_the_checkpoint_suffices() -> None:
    assert asked(X, sees=None, notes=[recorded("p", "c0", X)]) == proof(P, (0, ONE))


def test_without_a_checkpoint_pod_resources_and_the_pod_as_it_is_now_suffice() -> None:
    assert asked(X, sees=[listed("p", "c0", X)], read=P, notes=None, answered="s") == proof(P, (0, ONE), slot="s")


def test_without_a_checkpoint_the_watched_pod_of_that_name_may_be_a_predecessor() -> None:
    old, fresh = changed(P, uid="uid-old", phase="Running"), changed(P)
    answer = refusal(asked(X, pods=[old], sees=[listed("p", "c0", X)], notes=None))
    assert (answer.unknown, answer.may_change) == ("default/p", True)
    assert answer.sentence.endswith("kubelet's checkpoint, which names its UID, cannot be read")
    assert asked(X, pods=[old], read=fresh, sees=[listed("p", "c0", X)], notes=None, answered="s") == proof(
        fresh, (0, ONE), slot="s"
    )


def test_without_a_checkpoint_an_init_container_that_may_share_the_slot_forbids_a_proof() -> None:
    pod = bound_pod("p", (ONE, ONE), init=1)
    answer = refusal(asked(X, pods=[pod], read=pod, sees=[listed("p", "c1", X)], notes=None))
    assert "its init container c0 may hold the same" in answer.sentence
    assert answer.may_change


def test_without_either_witness_nobody_is_proven() -> None:
    answer = refusal(asked(X, sees=None, notes=None))
    assert answer.sentence.endswith(
        "pod-resources does not answer (connection refused); kubelet's checkpoint cannot be read"
    )
    assert answer.may_change


def test_a_pod_that_pod_resources_lists_too_late_is_proven_by_the_checkpoint() -> None:
    assert asked(X, sees=[], notes=[recorded("p", "c0", X)]) == proof(P, (0, ONE))


def test_a_listing_from_before_the_ids_were_used_again_is_waited_out() -> None:
    pods = [bound_pod("p", (ONE,)), bound_pod("q", (ONE,))]
    answer = refusal(asked(X, pods=pods, sees=[listed("q", "c0", X)], notes=[recorded("p", "c0", X)]))
    assert (
        "pod-resources names pod default/q, container c0, kubelet's checkpoint the pod with UID uid-p"
        in answer.sentence
    )
    assert answer.may_change


def test_ids_used_again_after_a_finished_pod_belong_to_the_next() -> None:
    pods = [changed(P, phase="Succeeded"), bound_pod("q", (OTHER,))]
    sees = [listed("p", "c0", X), listed("q", "c0", X)]
    notes = [recorded("p", "c0", X), recorded("q", "c0", X)]
    assert asked(X, pods=pods, sees=sees, notes=notes) == proof(pods[1], (0, OTHER))
    assert asked(X, pods=pods, sees=[], notes=notes) == proof(pods[1], (0, OTHER))


def test_an_entry_of_a_pod_that_is_gone_does_not_count() -> None:
    assert asked(X, notes=[recorded("gone", "c0", X), recorded("p", "c0", X)]) == proof(P, (0, ONE))


def test_two_living_pods_with_the_same_ids_are_refused_by_name() -> None:
    pods = [bound_pod("p", (ONE,)), bound_pod("q", (ONE,))]
    both = [recorded("p", "c0", X), recorded("q", "c0", X)]
    by_both = refusal(asked(X, pods=pods, sees=[listed("p", "c0", X), listed("q", "c0", X)], notes=both))
    assert "pods default/p and default/q are listed by pod-resources" in by_both.sentence
    by_checkpoint = refusal(asked(X, pods=pods, notes=both))
    assert "kubelet's checkpoint has pods default/p and default/q with exactly these" in by_checkpoint.sentence
    crossed = refusal(asked(X, pods=pods, sees=[listed("p", "c0", X)], notes=both))
    assert "pod-resources names pod default/p, kubelet's checkpoint also default/q" in crossed.sentence
    assert by_both.may_change
    assert by_checkpoint.may_change
    assert crossed.may_change


def test_a_pod_that_the_watch_lacks_is_named_for_a_direct_read() -> None:
    answer = refusal(asked(X, pods=[], sees=[listed("p", "c0", X)], notes=[recorded("p", "c0", X)]))
    assert answer.unknown == "default/p"
    assert answer.sentence.endswith(
        "pod-resources names pod default/p, container c0, kubelet's checkpoint the pod with UID uid-p, and the API "
        "server has not shown that pod on this node"
    )
    assert answer.may_change


@pytest.mark.parametrize("phase", ["Pending", "Running", "Succeeded"])
def test_a_namesake_made_anew_is_not_taken_for_the_pod_the_watch_still_shows(phase: str) -> None:
    old = changed(P, uid="uid-old", phase=phase)
    answer = refusal(asked(X, pods=[old], sees=[listed("p", "c0", X)], notes=[recorded("p", "c0", X)]))
    assert (answer.unknown, answer.may_change) == ("default/p", True)
    fresh = changed(P)
    assert asked(X, pods=[old, fresh], sees=[listed("p", "c0", X)], notes=[recorded("p", "c0", X)]) == proof(
        fresh, (0, ONE)
    )


def test_without_a_checkpoint_a_pod_on_its_way_out_may_be_a_namesake() -> None:
    answer = refusal(asked(X, pods=[changed(P, deleted=True)], sees=[listed("p", "c0", X)], notes=None))
    assert (answer.unknown, answer.may_change) == ("default/p", True)


def test_a_pod_that_is_being_deleted_is_not_served() -> None:
    dying = changed(P, deleted=True)
    answer = refusal(asked(X, pods=[dying], sees=[listed("p", "c0", X)], notes=[recorded("p", "c0", X)]))
    assert answer.sentence.endswith("pod default/p holds them, but it is being deleted")
    assert refusal(asked(X, pods=[dying], notes=[recorded("p", "c0", X)])).may_change


def test_a_pod_of_another_node_is_not_served() -> None:
    answer = refusal(asked(X, pods=[changed(P, node="node-2")], notes=[recorded("p", "c0", X)]))
    assert "which the API server has not shown on this node" in answer.sentence


def test_a_pod_that_has_ended_is_not_served() -> None:
    answer = refusal(asked(X, pods=[changed(P, phase="Failed")], notes=[recorded("p", "c0", X)]))
    assert answer.sentence.endswith("kubelet's checkpoint names pod default/p, which has ended or is being deleted")


@pytest.mark.parametrize(
    ("pod", "inventory", "problem"),
    [
        (bound_pod("p", (TWO,)), INVENTORY, "pod default/p, container c0, holds them, but 2 GPUs were decided for it"),
        (bound_pod("p", ((),)), INVENTORY, "0 GPUs were decided"),
        (bound_pod("p", (ONE,), changed={DEVICES_ALLOCATED: "nonsense;"}), INVENTORY, "nothing readable was decided"),
        (bound_pod("p", ((share(DeviceUUID("GPU-x")),),)), INVENTORY, "GPU-x is not a GPU of this node"),
        (bound_pod("p", ((share(A, 40961),),)), INVENTORY, "40961 MiB"),
        (bound_pod("p", ((share(A, 1, 101),),)), INVENTORY, "101 %"),
        (bound_pod("p", (ONE,)), {A: a100(A, 0, healthy=False)}, "unhealthy"),
    ],
)
def test_a_proven_pod_that_must_not_be_served_is_named(
    pod: Pod, inventory: Mapping[DeviceUUID, Device], problem: str
) -> None:
    sees, notes = [listed("p", "c0", X)], [recorded("p", "c0", X)]
    answer = refusal(asked(X, pods=[pod], sees=sees, notes=notes, inventory=inventory))
    assert problem in answer.sentence
    assert "default/p" in answer.sentence
    assert not answer.may_change


def test_a_container_that_the_pod_does_not_have_is_not_served() -> None:
    answer = refusal(asked(X, sees=[listed("p", "c9", X)], notes=[recorded("p", "c9", X)]))
    assert answer.sentence.endswith("pod default/p has no container c9, which holds them")


def test_a_sentence_names_few_of_many_ids() -> None:
    answer = refusal(asked(*(f"{A}-{number}" for number in range(9))))
    assert f"exactly the 9 devices {A}-0, {A}-1, {A}-2, {A}-3 and 5 more: " in answer.sentence
