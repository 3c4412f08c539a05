from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.node.desired import NO_TIME, Desired, NodePatch, is_met, patch_of
from deviceplugin.node.totals import (
    PRIORITY_TOTAL,
    node_totals,
    present_totals,
    requested_totals,
)
from deviceplugin.settings import TotalNames
from proto.annotations import keys
from proto.kubernetes.objects import (
    Node,
    Pod,
)
from proto.kubernetes.requests import requested
from tests.builders import container, node, pod
from tests.deviceplugin.gpus import PAIR

NAMES = TotalNames()
MIB = sum(device.memory_mib for device in PAIR)
TOTALS = {
    keys.RESOURCE_MEMORY: MIB,
    keys.RESOURCE_MEMORY_PERCENTAGE: 200,
    keys.RESOURCE_CORES: 200,
    keys.RESOURCE_PRIORITY: PRIORITY_TOTAL,
}


def test_totals_are_the_sums_over_all_gpus_also_those_that_are_unhealthy() -> None:
    assert node_totals(NAMES, PAIR, ()) == TOTALS
    assert node_totals(NAMES, [replace(PAIR[0], healthy=False), PAIR[1]], ()) == TOTALS


def test_memory_and_cores_that_are_scaled_count_as_registered() -> None:
    scaled = [replace(device, memory_mib=2 * device.memory_mib, cores=150) for device in PAIR]
    assert node_totals(NAMES, scaled, ()) == TOTALS | {keys.RESOURCE_MEMORY: 2 * MIB, keys.RESOURCE_CORES: 300}


def test_names_are_those_of_the_cluster() -> None:
    names = TotalNames(memory="a/m", memory_percentage="a/p", cores="a/c", priority="a/o")
    assert list(node_totals(names, PAIR, ())) == list(names) == ["a/m", "a/p", "a/c", "a/o"]


def test_no_total_is_below_what_running_pods_ask_for() -> None:
    """One of two GPUs is gone for good, and a pod still holds both."""
    pods = [
        pod(container(gpumem=MIB - 100, gpucores=150)),
        pod(container(gpumem=200)),
        pod(container(gpumem=MIB), phase="Succeeded"),
    ]
    totals = node_totals(NAMES, PAIR[:1], [requested_totals(each, NAMES) for each in pods])
    assert (totals[keys.RESOURCE_MEMORY], totals[keys.RESOURCE_CORES]) == (MIB + 100, 150)


AT_RANDOM = st.builds(container, gpumem=st.integers(0, 2**40), gpucores=st.integers(0, 10**4)).map(pod)


@given(st.lists(AT_RANDOM, max_size=9))
def test_kubelet_has_no_reason_to_refuse_a_pod_that_runs(pods: list[Pod]) -> None:
    totals = node_totals(NAMES, PAIR, [requested_totals(each, NAMES) for each in pods])
    assert all(sum(requested(one, name) for one in pods) <= total for name, total in totals.items())


def test_a_node_that_says_all_is_left_alone_in_whatever_form_the_api_server_writes_it() -> None:
    said = node(gpumem="1k", gpucores="200")
    assert is_met(said, Desired(totals={keys.RESOURCE_MEMORY: 1000, keys.RESOURCE_CORES: 200}))


@pytest.mark.parametrize("said", [node(), node(gpumem="0"), node(gpumem="999"), node(gpumem="many")])
def test_what_is_missing_zero_other_or_unreadable_is_written_in_capacity_and_allocatable(
    said: Node,
) -> None:
    written = {keys.RESOURCE_MEMORY: "1000"}
    said.status.capacity |= {keys.RESOURCE_CORES: "200"}
    patch = patch_of(said, Desired(totals={keys.RESOURCE_MEMORY: 1000, keys.RESOURCE_CORES: 200}), NO_TIME)
    assert patch == NodePatch({"status": {"capacity": written, "allocatable": written}}, of_status=True)


def test_what_is_taken_off_is_what_the_node_says_be_it_nothing() -> None:
    said = node(gpu="20", gpumem="0", priority="5")
    said.status.allocatable[keys.RESOURCE_CORES] = "1"
    names = present_totals(said, NAMES)
    assert names == (keys.RESOURCE_MEMORY, keys.RESOURCE_CORES, keys.RESOURCE_PRIORITY)
    gone = dict.fromkeys(names)
    patch = patch_of(said, Desired(totals={**gone, "nvidia.com/other": None}), NO_TIME)
    assert patch == NodePatch({"status": {"capacity": gone, "allocatable": gone}}, of_status=True)
    assert present_totals(node(gpu="20"), NAMES) == ()
