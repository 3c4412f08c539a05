"""Pods that run on though the API server has them no more, as the node daemon writes them."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.annotations.errors import AnnotationError
from proto.annotations.outliving_pods import MOST_PODS, Outliving, decode_outliving, encode_outliving
from proto.devices import DeviceUUID

A, B = DeviceUUID("GPU-a"), DeviceUUID("GPU-b")
names = st.text(min_size=1, max_size=40)
amounts = st.tuples(st.integers(0, 2**31), st.integers(0, 2**31), st.integers(0, 2**31))
outlivings = st.builds(
    Outliving,
    as_of=st.integers(0, 2**63),
    pods=st.dictionaries(names, st.dictionaries(names.map(DeviceUUID), amounts, max_size=4), max_size=MOST_PODS),
)


def test_it_is_json_in_order() -> None:
    value = '{"version":1,"asOf":"17","pods":{"uid-1":{},"uid-2":{"GPU-a":[1,2000,30],"GPU-b":[1,0,0]}}}'
    outliving = Outliving(17, {"uid-2": {B: (1, 0, 0), A: (1, 2000, 30)}, "uid-1": {}})
    assert encode_outliving(outliving) == value
    assert decode_outliving(value) == outliving
    named = Outliving(17, {"uid-1": {}}, {"uid-1": "team/train"})
    assert encode_outliving(named) == '{"version":1,"asOf":"17","pods":{"uid-1":{}},"names":{"uid-1":"team/train"}}'
    assert decode_outliving(encode_outliving(named)) == named
    assert encode_outliving(Outliving(17)) == '{"version":1,"asOf":"17"}'


@given(outlivings)
def test_it_round_trips(outliving: Outliving) -> None:
    assert decode_outliving(encode_outliving(outliving)) == outliving


def test_a_pod_has_ended_if_it_is_not_named_and_its_deletion_was_known() -> None:
    outliving = Outliving(17, {"uid-1": {}})
    assert not outliving.has_ended("uid-1", 5)
    assert outliving.has_ended("uid-2", 17)
    assert not outliving.has_ended("uid-2", 18)


def test_of_very_many_pods_none_that_is_left_out_is_said_to_have_ended() -> None:
    gpus = {DeviceUUID(f"GPU-{number:036}"): (10, 80_000, 100) for number in range(16)}
    value = encode_outliving(Outliving(17, {f"{number:036}": gpus for number in range(1000)}))
    assert len(value) < 96 * 1024
    assert not decode_outliving(value).has_ended(f"{999:036}", 5)


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ("[]", ""),
        ('{"version":2,"asOf":"1"}', "$.version"),
        ('{"version":1,"asOf":"-1"}', "$.asOf"),
        ('{"version":1,"asOf":"1","pods":{"":{}}}', "$.pods"),
        ('{"version":1,"asOf":"1","pods":{"u":{"GPU-a":[1,-2,3]}}}', "$.pods[...]"),
        ('{"version":1,"asOf":"1","pods":{"u":{"GPU-a":[1,2]}}}', ""),
    ],
)
def test_what_cannot_be_read_is_named(value: str, where: str) -> None:
    with pytest.raises(AnnotationError) as refused:
        decode_outliving(value)
    assert where in str(refused.value)


@given(st.text())
def test_nothing_else_is_raised(value: str) -> None:
    with suppress(AnnotationError):
        decode_outliving(value)
