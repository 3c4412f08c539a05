from hypothesis import given
from hypothesis import strategies as st

from proto.kubernetes.events import Pace


def test_after_a_burst_turns_come_at_the_rate() -> None:
    pace = Pace(per_second=2, burst=3)
    assert [pace.take(10.0) for _ in range(5)] == [0, 0, 0, 0.5, 1.0]
    assert pace.take(11.5) == 0


def test_a_burst_of_one_is_the_bare_rate() -> None:
    pace = Pace(per_second=10, burst=1)
    assert [round(pace.take(0.0), 6) for _ in range(3)] == [0, 0.1, 0.2]


@given(
    st.floats(0.5, 100),
    st.integers(1, 20),
    st.lists(st.floats(0, 2), min_size=1, max_size=60),
)
def test_no_window_sees_more_than_the_burst_and_its_share_of_the_rate(
    per_second: float, burst: int, gaps: list[float]
) -> None:
    pace, now, turns = Pace(per_second=per_second, burst=burst), 0.0, []
    for gap in gaps:
        now += gap
        turns.append(now + pace.take(now))
    for first, start in enumerate(turns):
        for last, end in enumerate(turns[first:], start=first):
            assert last - first + 1 <= burst + (end - start) * per_second + 1e-6
