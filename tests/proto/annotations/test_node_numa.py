"""How kubelet keeps CPUs and GPUs together, as the node daemon writes it."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.annotations.errors import AnnotationError
from proto.annotations.node_numa import (
    LARGEST_NUMBER,
    MOST_ZONES,
    NodeNuma,
    TopologyPolicy,
    TopologyScope,
    ZoneCpus,
    decode_numa,
    encode_numa,
)

zones = st.tuples(st.integers(0, 500), st.integers(0, 500), st.booleans()).map(
    lambda each: ZoneCpus(max(each[:2]), min(each[:2]), closed=each[2])
)
numas = st.builds(
    NodeNuma,
    policy=st.sampled_from(TopologyPolicy),
    scope=st.sampled_from(TopologyScope),
    zones=st.dictionaries(st.integers(0, LARGEST_NUMBER), zones, max_size=MOST_ZONES),
    changing=st.booleans(),
)


def test_it_is_json_in_order() -> None:
    zones = '"0":{"cpus":8,"free":7},"1":{"cpus":8,"free":8,"closed":true}'
    value = f'{{"version":1,"policy":"single-numa-node","scope":"pod","zones":{{{zones}}}}}'
    numa = NodeNuma(
        policy=TopologyPolicy.SINGLE_NUMA_NODE,
        scope=TopologyScope.POD,
        zones={1: ZoneCpus(8, 8, closed=True), 0: ZoneCpus(8, 7)},
    )
    assert encode_numa(numa) == value
    assert decode_numa(value) == numa
    assert encode_numa(NodeNuma(policy=TopologyPolicy.NONE)) == '{"version":1,"policy":"none"}'


@given(numas)
def test_it_round_trips(numa: NodeNuma) -> None:
    assert decode_numa(encode_numa(numa)) == numa


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ("", ""),
        ("{}", "policy"),
        ('{"version":2,"policy":"none"}', r"\$\.version"),
        ('{"version":1,"policy":"strict"}', r"\$\.policy"),
        ('{"version":1,"policy":"none","zones":{"0":{"cpus":1,"free":2}}}', "expected 0 <= free <= cpus"),
        ('{"version":1,"policy":"none","zones":{"-1":{"cpus":1,"free":1}}}', r"\$\.zones: Expected `int` >= 0"),
        ('{"version":1,"policy":"none","zones":{"30000000000":{"cpus":1,"free":1}}}', "zones: Expected `int` <= 63"),
    ],
)
def test_anything_else_is_refused(value: str, where: str) -> None:
    with pytest.raises(AnnotationError, match=f"topogpu.io/numa: .*{where}"):
        decode_numa(value)


@given(st.text())
def test_no_text_ends_in_another_error(value: str) -> None:
    with suppress(AnnotationError):
        decode_numa(value)
