import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.annotations.errors import AnnotationError
from proto.annotations.node_register import decode_scores, encode_scores
from proto.devices import DeviceUUID, PairScores

A, B, C = (DeviceUUID(f"GPU-{letter}") for letter in "abc")
SCORES: PairScores = {A: {B: 1240, C: 1210}, B: {A: 1240, C: 1210}, C: {A: 1210, B: 1210}}
GOLDEN = (
    '[{"uuid":"GPU-a","score":{"GPU-b":1240,"GPU-c":1210}},{"uuid":"GPU-b","score":{"GPU-a":1240,"GPU-c":1210}},'
    '{"uuid":"GPU-c","score":{"GPU-a":1210,"GPU-b":1210}}]'
)


def test_golden_both_ways() -> None:
    assert encode_scores(SCORES, (A, B, C)) == GOLDEN
    assert decode_scores(GOLDEN) == SCORES


def test_peers_are_sorted_and_rows_keep_the_order_of_the_register() -> None:
    assert encode_scores({A: {C: 1, B: 2}}, (C, A)) == (
        '[{"uuid":"GPU-c","score":{}},{"uuid":"GPU-a","score":{"GPU-b":2,"GPU-c":1}}]'
    )


def test_a_single_gpu_has_no_peers() -> None:
    assert encode_scores({}, (A,)) == '[{"uuid":"GPU-a","score":{}}]'
    assert decode_scores('[{"uuid":"GPU-a","score":{}}]') == {A: {}} == decode_scores('[{"uuid":"GPU-a"}]')


def test_integer_strings_are_read_and_never_written() -> None:
    assert decode_scores('[{"uuid":"GPU-a","score":{"GPU-b":"100","GPU-c":-5}}]') == {A: {B: 100, C: -5}}


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("", "truncated"),
        ("{}", "Expected `array`, got `object`"),
        ('[{"score":{}}]', "$[0]: Object missing required field `uuid`"),
        ('[{"uuid":"a","score":{"b":1.5}}]', "$[0].score[...]: Expected `int | str`, got `float`"),
        ('[{"uuid":"a","score":{"b":2147483648}}]', "$[0].score[...]: Expected `int` <= 2147483647"),
        ('[{"uuid":"a","score":{"b":"x"}}]', "a to b: expected a whole number, found 'x'"),
        ('[{"uuid":"a","score":{"b":"1_0"}}]', "a to b: expected a whole number, found '1_0'"),
    ],
)
def test_errors_name_key_place_and_reason(value: str, error: str) -> None:
    with pytest.raises(AnnotationError) as caught:
        decode_scores(value)
    assert str(caught.value).startswith("hami.io/node-nvidia-score: ")
    assert error in str(caught.value)


UUIDS = st.from_regex(r"GPU-[0-9a-f-]{1,36}", fullmatch=True).map(DeviceUUID)
MAPS = st.dictionaries(UUIDS, st.dictionaries(UUIDS, st.integers(min_value=0, max_value=10**6), max_size=4), max_size=4)


@given(MAPS)
def test_round_trip(scores: PairScores) -> None:
    assert decode_scores(encode_scores(scores, tuple(scores))) == scores
