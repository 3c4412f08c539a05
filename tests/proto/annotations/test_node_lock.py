from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.annotations.errors import AnnotationError
from proto.annotations.node_lock import NodeLock, decode_lock, encode_lock

AT = datetime(2025, 1, 2, 15, 4, 5, tzinfo=UTC)


def test_golden_both_ways() -> None:
    lock = NodeLock(taken_at=AT, namespace="default", pod="train-0")
    assert encode_lock(lock) == "2025-01-02T15:04:05Z,default,train-0"
    assert decode_lock("2025-01-02T15:04:05Z,default,train-0") == lock


def test_the_local_offset_hami_writes_is_kept() -> None:
    lock = decode_lock("2025-01-02T15:04:05+08:00,ns,pod")
    assert lock == NodeLock(taken_at=AT.replace(tzinfo=timezone(timedelta(hours=8))), namespace="ns", pod="pod")
    assert encode_lock(lock) == "2025-01-02T07:04:05Z,ns,pod"


def test_a_bare_time_stamp_is_a_lock_without_an_owner() -> None:
    assert decode_lock("2025-01-02T15:04:05Z") == NodeLock(taken_at=AT)
    assert encode_lock(NodeLock(taken_at=AT)) == "2025-01-02T15:04:05Z"


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("", "time: "),
        ("yesterday,ns,pod", "time: "),
        ("2025-01-02T15:04:05,ns,pod", "time: '2025-01-02T15:04:05' has no time zone"),
        ("2025-01-02T15:04:05Z,ns", "expected <time>,<namespace>,<pod>"),
        ("2025-01-02T15:04:05Z,ns,pod,more", "expected <time>,<namespace>,<pod>"),
        ("2025-01-02T15:04:05Z,,pod", "owner: expected <namespace>,<pod>"),
        ("2025-01-02T15:04:05Z,ns,", "owner: expected <namespace>,<pod>"),
    ],
)
def test_errors_name_key_place_and_reason(value: str, error: str) -> None:
    with pytest.raises(AnnotationError) as caught:
        decode_lock(value)
    assert str(caught.value).startswith(f"hami.io/mutex.lock: {error}")


NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,20}[a-z0-9])?", fullmatch=True)
TIMES = st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(9000, 1, 1)).map(  # noqa: DTZ001 - hypothesis wants naive bounds
    lambda at: at.replace(microsecond=0, tzinfo=UTC)
)


@given(st.builds(NodeLock, taken_at=TIMES, namespace=NAMES, pod=NAMES) | st.builds(NodeLock, taken_at=TIMES))
def test_round_trip(lock: NodeLock) -> None:
    assert decode_lock(encode_lock(lock)) == lock


@given(st.text())
def test_any_text_is_read_or_refused(value: str) -> None:
    key = "hami.io/mutex.lock"
    try:
        decode_lock(value)
    except AnnotationError as error:
        key = error.key
    assert key == "hami.io/mutex.lock"
