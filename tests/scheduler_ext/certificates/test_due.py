from datetime import UTC, datetime, timedelta

import pytest

from scheduler_ext.certificates.issue import Validity, is_due, names_to_serve

T0 = datetime(2030, 1, 1, tzinfo=UTC)
NAMES = frozenset({"a.svc"})
YEAR = Validity(not_before=T0, not_after=T0 + timedelta(days=360), names=NAMES)


@pytest.mark.parametrize(
    ("days", "due"),
    [
        (-1, True),
        (0, False),
        (239.99, False),
        (240, True),
        (360, True),
        (999, True),
    ],
)
def test_it_is_renewed_after_two_thirds_of_its_life(days: float, due: bool) -> None:
    assert is_due(YEAR, NAMES, T0 + timedelta(days=days)) is due


def test_a_new_certificate_is_due_without_one_that_can_be_used() -> None:
    assert is_due(None, NAMES, T0)


def test_one_that_lacks_a_name_is_renewed_and_one_that_has_more_is_kept() -> None:
    assert is_due(YEAR, NAMES | {"b.svc"}, T0)
    assert not is_due(YEAR, frozenset(), T0)


def test_replicas_with_different_names_agree_on_all_of_them_until_it_is_time_anyway() -> None:
    others = frozenset({"b.svc"})
    assert names_to_serve(YEAR, others, T0) == {"a.svc", "b.svc"}
    assert names_to_serve(YEAR, others, YEAR.renewed_at()) == others
    assert names_to_serve(None, others, T0) == others


def test_over_ten_years_there_is_always_a_good_one_and_few_are_made() -> None:
    """One look a day, each certificate living as long as those we make."""
    current, made = YEAR, 0
    for day in range(3650):
        now = T0 + timedelta(days=day)
        if is_due(current, NAMES, now):
            current, made = Validity(not_before=now, not_after=now + timedelta(days=360), names=NAMES), made + 1
        assert current.not_before <= now < current.not_after - timedelta(days=119)
    assert made == 15
