"""The wish for other GPU memory, and the answer to it."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.annotations.errors import AnnotationError
from proto.annotations.memory_resize import (
    LONGEST_WISH,
    ResizeAnswer,
    ResizeState,
    answer_in,
    decode_answer,
    decode_wish,
    encode_answer,
    encode_wish,
    wished,
)
from proto.devices import DeviceShare, DeviceUUID, PodShares

NAME = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)
KEY = "topogpu.io/gpu-memory"


def shares(*amounts: int) -> PodShares:
    """One container for each amount; 0 is one without a GPU."""
    return tuple((DeviceShare(uuid=DeviceUUID("GPU-a"), memory_mib=mib, cores=5),) if mib else () for mib in amounts)


@given(st.dictionaries(NAME, st.integers(1, 2**31 - 1), min_size=1, max_size=5), st.text("0123456789TZ:-", max_size=20))
def test_a_wish_reads_back(amounts: dict[str, int], stamp: str) -> None:
    assert decode_wish(encode_wish(amounts, stamp)) == amounts


@given(st.text(), st.sampled_from(ResizeState), st.text())
def test_an_answer_reads_back(wish: str, state: ResizeState, why: str) -> None:
    answer = ResizeAnswer(wish=wish, state=state, why=why)
    assert decode_answer(encode_answer(answer)) == answer


@given(st.text(max_size=200))
def test_any_other_text_is_refused_or_read(text: str) -> None:
    with suppress(AnnotationError):
        assert all(0 < mib < 2**31 for mib in decode_wish(text).values())


@pytest.mark.parametrize(
    ("text", "amounts"),
    [
        ("8192", {"": 8192}),
        ("8Gi", {"": 8192}),
        ("c0=8Gi, c1=512Mi", {"c0": 8192, "c1": 512}),
        ("c0=1.5M@2030-01-01T00:00:00Z", {"c0": 2}),
    ],
)
def test_amounts_are_mib_or_quantities(text: str, amounts: dict[str, int]) -> None:
    assert decode_wish(text) == amounts


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", f"{KEY}: expected MiB such as 8192, or 8Gi, found ''"),
        ("0", f"{KEY}: expected 1 to 2147483647 MiB, found '0'"),
        ("c=3Pi", f"{KEY}: container c: expected 1 to 2147483647 MiB, found '3Pi'"),
        ("50%", f"{KEY}: expected an amount such as 8192 or 8Gi, found '50%': GPUs differ"),
        *(
            (text, f"{KEY}: expected MiB such as 8192, or 8Gi, found {text!r}")
            for text in ("1e3", "8E3", "8192.0", "+8192", "0.5", "8000m", "8k", "8Ki", "8gi", "M")
        ),
        ("=5", f"{KEY}: entry 0: no container's name before '='"),
        ("c=5,c=6", f"{KEY}: entry 1: container c is named twice"),
        ("5,6", f"{KEY}: entry 1: the container is named twice"),
        ("1" * (LONGEST_WISH + 1), f"{KEY}: it has more than {LONGEST_WISH} characters"),
    ],
)
def test_what_is_no_wish_is_said(text: str, problem: str) -> None:
    with pytest.raises(AnnotationError) as error:
        decode_wish(text)
    assert str(error.value) == problem


def test_a_wish_changes_all_gpus_of_the_containers_that_it_names() -> None:
    assert wished("9", ["a", "b"], shares(0, 4)) == shares(0, 9)
    assert wished("b=9", ["a", "b"], shares(5, 4)) == shares(5, 9)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("9", "name the containers that have GPUs, for example a=8Gi,b=8Gi"),
        ("9,b=5", "name the containers that have GPUs, for example a=8Gi,b=8Gi"),
        ("c=9", "c has no GPU"),
        ("d=9", "d is not a container of this pod"),
    ],
)
def test_containers_that_cannot_be_meant_are_named(text: str, problem: str) -> None:
    with pytest.raises(AnnotationError) as error:
        wished(text, ["a", "b", "c"], shares(5, 4, 0))
    assert str(error.value) == f"{KEY}: {problem}"


def test_an_answer_that_cannot_be_read_promises_nothing() -> None:
    for value in ("", "x", '{"wish":"a","state":"b"}', "[]"):
        assert answer_in({"topogpu.io/gpu-memory-resize": value}) is None
