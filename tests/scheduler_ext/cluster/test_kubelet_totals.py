"""What `/filter` places, kubelet admits: it judges by the sums of what pods ask for against the Node's totals."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.annotations import keys
from proto.annotations.pod_devices import encode_pod_devices
from proto.kubernetes.objects import Container, Node, Pod
from proto.kubernetes.requests import requested
from scheduler_ext.capacity.account import account
from scheduler_ext.cluster.history import PodHistory
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.decide.decision import decide
from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.decide.reasons import Reason
from scheduler_ext.requests import RequestSettings
from scheduler_ext.verbs.filter_decision import FilterAnswer, FilterDecision
from tests.builders import container, node, pod
from tests.scheduler_ext.gpus import device, request

TOTALS = {"nvidia.com/gpumem": 2 * 1000, "nvidia.com/gpumem-percentage": 200, "nvidia.com/gpucores": 200}
SUMS_OF_NODE = {keys.RESOURCE_MEMORY_SUM: 2 * 1000, keys.RESOURCE_CORES_SUM: 200}


def telling(**changes: int) -> Node:
    """Two GPUs of 1000 MiB, and the totals of its daemon."""
    made = node("n", [device(number, memory_mib=1000, replicas=10) for number in range(2)])
    totals = TOTALS | {f"nvidia.com/{name}": amount for name, amount in changes.items()}
    for name, amount in totals.items():
        made.status.allocatable[name] = str(amount)
    return made


def asked(cluster: Cluster, wanted: Pod) -> FilterAnswer:
    return FilterDecision(NodeIndex(cluster.ledger), cluster, 60.0).reserve(wanted, request(wanted), ["n"], 0.0)


def why_not(cluster: Cluster, wanted: Pod) -> str:
    result = asked(cluster, wanted).result
    return "" if result.node_names else str((result.failed_nodes or {}).get("n", result))


def ledger_with(*placed: Pod, said: Node | None = None) -> Cluster:
    made = Cluster()
    made.ledger.apply_node(said or telling())
    for each in placed:
        assert why_not(made, each) == ""
    return made


def small(name: str, **amounts: Any) -> Pod:
    return pod(container(gpu=1, **amounts), name=name)


def test_a_pod_that_asks_for_more_cores_than_a_gpu_has_leaves_less_for_others() -> None:
    made = ledger_with(small("wide", gpumem=100, gpucores=150))
    assert why_not(made, small("a", gpumem=100, gpucores=60)) == "NodeTotalExceeded(nvidia.com/gpucores)"
    assert why_not(made, small("b", gpumem=100, gpucores=50)) == ""


def test_a_percentage_beside_an_amount_is_counted_too() -> None:
    made = ledger_with(*(small(f"p{n}", gpumem=100, gpumem_percentage=100) for n in range(2)))
    assert why_not(made, small("a", gpumem=100)) == ""
    assert why_not(made, small("b", gpumem_percentage=10)) == "NodeTotalExceeded(nvidia.com/gpumem-percentage)"


def test_the_pods_own_reservation_does_not_stand_in_its_way_and_what_it_gave_up_is_free() -> None:
    made = ledger_with(small("wide", gpumem=100, gpucores=150), small("wide", gpumem=100, gpucores=150))
    made.ledger.records.drop(made.ledger.records.reserved("uid-wide"))
    assert why_not(made, small("a", gpumem=100, gpucores=100)) == ""
    assert why_not(made, small("b", gpumem=100, gpucores=100)) == ""


def test_containers_without_gpus_and_pods_past_the_scheduler_count() -> None:
    made = ledger_with()
    made.ledger.apply_pod(pod(container(gpumem=1500), name="strange", node_name="n"))
    assert why_not(made, small("a", gpumem=600)) == "NodeTotalExceeded(nvidia.com/gpumem)"
    made.ledger.remove_pod("uid-strange")
    made.ledger.apply_pod(pod(container(gpu=1, gpumem=1500), name="past", node_name="n"))
    assert why_not(made, small("a", gpumem=600)) == "NodeTotalExceeded(nvidia.com/gpumem)"
    made.ledger.replace_pods([])
    assert why_not(made, small("a", gpumem=600)) == ""


def test_a_total_that_is_lower_than_what_the_gpus_have_holds_and_a_missing_one_does_not_limit() -> None:
    assert why_not(ledger_with(said=telling(gpumem=500)), small("a", gpumem=600)) == (
        "NodeTotalExceeded(nvidia.com/gpumem)"
    )
    bare = telling()
    bare.status.allocatable = {keys.RESOURCE_COUNT: "10"}
    assert why_not(ledger_with(said=bare), small("a", gpumem=600, gpucores=300)) == ""


def summed(name: str, memory_sum: int, node_name: str = "") -> Pod:
    """A pod with sums, which the webhook wrote."""
    made = pod(container(gpu=1, gpumem=100), name=name, node_name=node_name)
    made.spec.containers[0].resources.limits[keys.RESOURCE_MEMORY_SUM] = str(memory_sum)
    return made


def test_sums_of_a_node_that_its_daemon_has_not_raised_yet_hold_but_not_against_victims() -> None:
    """Kubelet would refuse the pod until the daemon has written them again."""
    said = telling()
    said.status.allocatable[keys.RESOURCE_MEMORY_SUM] = "1500"
    made, wanted = ledger_with(said=said), summed("a", 600)
    made.ledger.apply_pod(summed("b", 1000, "n"))
    assert why_not(made, wanted) == f"NodeTotalExceeded({keys.RESOURCE_MEMORY_SUM})"
    assert made.ledger.kubelet.refusing(wanted, ["n"], gone=["uid-other"]) == {}
    said.status.allocatable[keys.RESOURCE_MEMORY_SUM] = "2000"
    made.ledger.apply_node(said)
    assert why_not(made, wanted) == ""


@pytest.mark.parametrize(
    ("memory", "refused"),
    [({}, True), ({"gpumem_percentage": 50}, True), ({"gpumem": 500}, True), ({"gpumem": 2100}, False)],
)
def test_a_sum_larger_than_what_is_charged_is_refused_where_kubelet_would(memory: Any, refused: bool) -> None:
    """The webhook counted a larger GPU than the node's, or the author wrote the sum past it."""
    total = 2000 if refused else 3000
    said = telling(gpumem=4000)
    said.status.allocatable |= {keys.RESOURCE_MEMORY_SUM: str(total), keys.RESOURCE_CORES_SUM: "200"}
    wanted = pod(container(gpu=1, **memory))
    wanted.spec.containers[0].resources.limits[keys.RESOURCE_MEMORY_SUM] = "2100"
    expected = {"n": keys.RESOURCE_MEMORY_SUM} if refused else {}
    assert ledger_with(said=said).ledger.kubelet.refusing(wanted, ["n"]) == expected


def test_a_gpu_whose_memory_is_unknown_counts_as_smaller_than_any_that_was_summed_up() -> None:
    said = node("n", [device(0, memory_mib=1000), device(1, memory_mib=0)])
    said.status.allocatable |= {keys.RESOURCE_MEMORY_SUM: "1000", keys.RESOURCE_CORES_SUM: "200"}
    wanted = pod(container(gpu=2, gpumem_percentage=100))
    wanted.spec.containers[0].resources.limits[keys.RESOURCE_MEMORY_SUM] = "2000"
    assert ledger_with(said=said).ledger.kubelet.refusing(wanted, ["n"]) == {"n": keys.RESOURCE_MEMORY_SUM}


amounts = st.fixed_dictionaries(
    {},
    optional={
        "gpu": st.integers(0, 2),
        "gpumem": st.sampled_from([0, 1, 100, 333, 500, 1000]),
        "gpumem_percentage": st.sampled_from([0, 1, 33, 50, 100]),
        "gpucores": st.sampled_from([0, 10, 50, 100, 150, 250]),
    },
)
container_lists = st.lists(amounts, min_size=1, max_size=3)


def made_pod(name: str, apps: Sequence[dict[str, Any]], inits: Sequence[dict[str, Any]], sidecar: bool) -> Pod:
    restart = "Always" if sidecar else ""
    first: list[Container] = [container(f"i{n}", restart, **each) for n, each in enumerate(inits)]
    return pod(*(container(f"c{n}", **each) for n, each in enumerate(apps)), name=name, inits=first)


@given(
    pods=st.lists(
        st.tuples(
            container_lists,
            st.lists(amounts, max_size=2),
            st.booleans(),
            st.booleans(),
            st.sampled_from([0, 0, 400, 1000, 1600]),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_kubelet_admits_what_is_placed_and_would_refuse_what_is_refused_for_it(
    pods: list[tuple[list[dict[str, Any]], list[dict[str, Any]], bool, bool, int]],
) -> None:
    cluster = Cluster()
    ledger = cluster.ledger
    said = telling()
    said.status.allocatable |= {name: str(amount) for name, amount in SUMS_OF_NODE.items()}
    ledger.apply_node(said)
    on_the_node: list[Pod] = []
    for number, (apps, inits, sidecar, binds, memory_sum) in enumerate(pods):
        wanted = made_pod(f"p{number}", apps, inits, sidecar)
        if memory_sum:
            wanted.spec.containers[0].resources.limits[keys.RESOURCE_MEMORY_SUM] = str(memory_sum)
        if not any("gpu" in each and each["gpu"] for each in (*apps, *inits)):
            continue
        answer = asked(cluster, wanted).result
        exceeds = [
            name
            for name, total in {**TOTALS, **SUMS_OF_NODE}.items()
            if requested(wanted, name) and sum(requested(each, name) for each in (*on_the_node, wanted)) > total
        ]
        if answer.node_names:
            assert exceeds == []
            on_the_node.append(wanted)
            reservation = ledger.records.reserved(wanted.metadata.uid)
            assert reservation is not None
            if binds:
                wanted.spec.node_name = "n"
                wanted.metadata.annotations[keys.DEVICES_ALLOCATED] = encode_pod_devices(reservation.shares)
                ledger.apply_pod(wanted)
        elif "NodeTotalExceeded" in str(answer.failed_nodes):
            assert exceeds


@pytest.mark.parametrize("gone", ["pods", "node"])
def test_nothing_stays_of_what_is_gone(gone: str) -> None:
    made = ledger_with(small("wide", gpumem=100, gpucores=150))
    made.ledger.records.drop(made.ledger.records.reserved("uid-wide"))
    made.ledger.apply_pod(pod(container(gpumem=1500), name="strange", node_name="n"))
    assert made.ledger.kubelet._requested == {("n", keys.RESOURCE_MEMORY): 1500}
    made.ledger.replace_pods([])
    if gone == "node":
        made.ledger.remove_node("n")
    kept = made.ledger.kubelet
    assert not made.ledger.records.on_node("n")
    assert not kept._requested
    assert not kept._stricter
    assert bool(kept._totals) == (gone != "node")


def test_who_asks_why_the_pod_waits_is_told_so_too() -> None:
    made, wanted = ledger_with(small("wide", gpumem=100, gpucores=150)), small("a", gpumem=100, gpucores=60)
    [line] = account(wanted, RequestSettings(), "", made.ledger.snapshot_for(wanted), PodHistory(), now=0.0).nodes
    assert line.reason == "NodeTotalExceeded(nvidia.com/gpucores)"
    assert line.sentence == Reason.TOTAL_EXCEEDED.words
    fits = small("b", gpumem=100, gpucores=50)
    assert decide(request(fits), made.ledger.snapshot_for(fits), ["n"]).node == "n"
