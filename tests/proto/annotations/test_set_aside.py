import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.annotations.errors import AnnotationError
from proto.annotations.set_aside import SetAside, decode_set_aside, encode_set_aside

SECONDS = st.integers(0, 4_000_000_000)


@given(st.text(max_size=10), SECONDS, SECONDS)
def test_a_set_aside_node_is_read_as_it_was_written(node: str, one: int, other: int) -> None:
    aside = SetAside(node=node, since=min(one, other), until=max(one, other))
    assert decode_set_aside(encode_set_aside(aside)) == aside


def test_the_form_of_a_set_aside_node_stays() -> None:
    written = '{"since":"2030-01-01T00:00:00Z","until":"2030-01-02T00:00:00Z","node":"a"}'
    assert encode_set_aside(decode_set_aside(written)) == written
    assert decode_set_aside(written) == SetAside(node="a", since=1893456000, until=1893542400)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "a",
        '{"node":"a"}',
        '{"since":"soon","until":"2030-01-02T00:00:00Z"}',
        '{"since":"2030-01-02T00:00:00Z","until":"2030-01-01T00:00:00Z","node":"a"}',
    ],
)
def test_what_names_no_set_aside_node_is_refused(value: str) -> None:
    with pytest.raises(AnnotationError, match=r"topogpu\.io/set-aside"):
        decode_set_aside(value)
