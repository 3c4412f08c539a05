"""What kubelet gave to pods without a decision, as the node daemon writes it."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.annotations.errors import AnnotationError
from proto.annotations.undecided_pods import MOST_PODS, decode_undecided, encode_undecided
from proto.devices import DeviceUUID

A, B = DeviceUUID("GPU-a"), DeviceUUID("GPU-b")
names = st.text(min_size=1, max_size=40)
pods = st.dictionaries(
    names,
    st.dictionaries(names.map(DeviceUUID), st.integers(1, 2**31 - 1), min_size=1, max_size=4),
    max_size=MOST_PODS,
)


def test_it_is_json_in_order() -> None:
    value = '{"version":1,"pods":{"uid-1":{"GPU-a":1},"uid-2":{"GPU-a":1,"GPU-b":2}}}'
    assert encode_undecided({"uid-2": {B: 2, A: 1}, "uid-1": {A: 1}}) == value
    assert decode_undecided(value) == {"uid-1": {A: 1}, "uid-2": {A: 1, B: 2}}


@given(pods)
def test_it_round_trips(pods: dict[str, dict[DeviceUUID, int]]) -> None:
    assert decode_undecided(encode_undecided(pods)) == pods


def test_of_very_many_pods_it_names_some_and_says_how_many_more_there_are() -> None:
    value = encode_undecided({f"uid-{number:04}": {A: 1} for number in range(1000)})
    assert value.endswith('"more":936}')
    assert set(decode_undecided(value)) == {f"uid-{number:04}" for number in range(MOST_PODS)}
    gpus = {DeviceUUID(f"GPU-{number:036}"): 1 for number in range(16)}
    assert len(encode_undecided({f"{number:036}": gpus for number in range(1000)})) < 64 * 1024


def test_what_a_later_release_adds_is_passed_over() -> None:
    assert decode_undecided('{"version":1,"since":"x","pods":{"u":{"GPU-a":1}}}') == {"u": {A: 1}}


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ("", ""),
        ("[]", ""),
        ("{}", "version"),
        ('{"version":2,"pods":{}}', r"\$\.version"),
        ('{"version":1,"pods":{"u":{}}}', r"\$\.pods"),
        ('{"version":1,"pods":{"":{"GPU-a":1}}}', r"\$\.pods"),
        ('{"version":1,"pods":{"u":{"GPU-a":0}}}', r"\$\.pods"),
        ('{"version":1,"pods":{"u":{"":1}}}', r"\$\.pods"),
        ('{"version":1,"pods":{"u":{"GPU-a":"1"}}}', r"\$\.pods"),
    ],
)
def test_anything_else_is_refused(value: str, where: str) -> None:
    with pytest.raises(AnnotationError, match=f"topogpu.io/undecided-pods: .*{where}"):
        decode_undecided(value)


@given(st.text())
def test_no_text_ends_in_another_error(value: str) -> None:
    with suppress(AnnotationError):
        decode_undecided(value)
