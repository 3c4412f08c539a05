from collections import Counter

import pytest

from proto.annotations.keys import NODE_CLIQUE
from simulation import machines
from simulation.cluster import machine_kinds
from simulation.machines.sets import BLOCK, RACK, SETS
from simulation.plan.machines import read_cluster


@pytest.mark.parametrize("name", SETS)
def test_a_set_is_of_a_machine_that_exists_and_names_its_sources(name: str) -> None:
    assert SETS[name].machine in machines.names()
    assert SETS[name].sources


def test_two_racks_of_nvl72_are_two_cliques_of_18_nodes_with_4_gpus() -> None:
    nodes = read_cluster("2x:gb200-nvl72").nodes
    assert sorted(Counter(node.metadata.labels[NODE_CLIQUE] for node in nodes).values()) == [18, 18]
    assert {node.status.allocatable["nvidia.com/gpu"] for node in nodes} == {40}


def test_a_two_rack_cluster_has_four_machines_of_each_and_no_clique() -> None:
    nodes = read_cluster("hgxh100-two-racks,dgx-a100").nodes
    places = Counter((node.metadata.labels.get(BLOCK), node.metadata.labels.get(RACK)) for node in nodes)
    assert places == {("block-1", "rack-1"): 4, ("block-1", "rack-2"): 4, (None, None): 1}
    assert not any(NODE_CLIQUE in node.metadata.labels for node in nodes)


def test_the_simulator_starts_a_node_for_each_machine_of_a_set() -> None:
    kinds = machine_kinds(("hgxh100-two-racks", "1x-t4-vm"), None)
    assert [each.labels.get(RACK, "") for each in kinds] == [*["rack-1"] * 4, *["rack-2"] * 4, ""]
