from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.quantity import QuantityError, integer_quantity, parse_quantity, readable_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", Fraction(0)),
        ("500m", Fraction(1, 2)),
        ("100n", Fraction(1, 10**7)),
        ("4k", Fraction(4000)),
        ("1Ki", Fraction(1024)),
        ("1Gi", Fraction(1024**3)),
        ("0.5Gi", Fraction(1024**3, 2)),
        (".5", Fraction(1, 2)),
        ("5.", Fraction(5)),
        ("1E", Fraction(10**18)),
        ("1Ei", Fraction(1024**6)),
        ("1e3", Fraction(1000)),
        ("1E3", Fraction(1000)),
        ("15e-1", Fraction(3, 2)),
        ("-2", Fraction(-2)),
        ("+2", Fraction(2)),
        (3, Fraction(3)),
        (2.5, Fraction(5, 2)),
        (1e20, Fraction(10**20)),
    ],
)
def test_quantities_mean_what_kubernetes_means(text: str | float, value: Fraction) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "k",
        "1K",
        "1 Gi",
        " 1",
        "1\n",
        "1mi",
        "1e",
        "1e9999",
        "1.2.3",
        "0x1",
        "NaN",
        "٣",
        "9" * 65,
        True,
        float("inf"),
    ],
)
def test_what_is_no_quantity_is_refused_and_shown(text: str | float) -> None:
    with pytest.raises(QuantityError, match="expected a quantity such as"):
        parse_quantity(text)


def test_whole_numbers_may_be_written_with_a_suffix() -> None:
    assert [integer_quantity(text) for text in ("4k", "1Gi", "2000m", 7)] == [4000, 1073741824, 2, 7]


def test_half_a_device_is_no_whole_number() -> None:
    with pytest.raises(QuantityError, match="expected a whole number, found '500m'"):
        integer_quantity("500m")


def test_an_unreadable_quantity_counts_as_none() -> None:
    assert [readable_quantity(text) for text in ("4k", "500m", "many", -1)] == [4000, 0, 0, -1]


@given(st.integers(min_value=-(10**18), max_value=10**18))
def test_every_integer_reads_as_itself(number: int) -> None:
    assert integer_quantity(str(number)) == number == integer_quantity(number)


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse_quantity(text)
    except QuantityError:
        return
