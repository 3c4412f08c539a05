import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.machine.numa import format_cpu_list, host_node, mask_bits, parse_cpu_list
from proto.devices import UNKNOWN_NUMA

TWO_NODES = {0: {0, 1}, 1: {2, 3}}


@given(st.frozensets(st.integers(0, 500)))
def test_a_cpu_list_survives_being_written(cpus: frozenset[int]) -> None:
    assert parse_cpu_list(format_cpu_list(cpus)) == cpus


def test_a_cpu_list_is_written_as_the_kernel_writes_it() -> None:
    assert format_cpu_list([0, 1, 2, 8, 10, 11]) == "0-2,8,10-11"


def test_mask_words_hold_the_low_numbers_first() -> None:
    assert mask_bits([0b101, 1]) == {0, 2, 64}


@pytest.mark.parametrize(
    ("sysfs", "memory", "cpus", "node"),
    [
        (1, {0}, {0}, 1),
        (-1, {1, 5}, {0}, 1),
        (-1, {5, 6}, {2, 3}, 1),
        (-1, (), (), UNKNOWN_NUMA),
    ],
)
def test_the_nearest_witness_tells_the_node(sysfs: int, memory: set[int], cpus: set[int], node: int) -> None:
    assert host_node(sysfs, memory, cpus, TWO_NODES) == node


def test_the_only_node_with_cpus_is_the_node() -> None:
    assert host_node(-1, (), (), {0: {0, 1}, 4: ()}) == 0
