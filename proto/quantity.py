"""Kubernetes quantities: `500m`, `4k`, `1Gi`, `1e3`, as exact numbers.

Source: k8s.io/apimachinery, resource.Quantity.
"""

import re
from fractions import Fraction
from functools import lru_cache
from math import ceil

_SUFFIXES: dict[str, Fraction] = {
    "": Fraction(1),
    **{suffix: Fraction(10) ** (3 * power) for power, suffix in enumerate(("n", "u", "m"), start=-3)},
    **{suffix: Fraction(10) ** (3 * power) for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    **{suffix: Fraction(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)},
}

_FORM = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))"
    r"(?:[eE](?P<exponent>[+-]?[0-9]{1,3})|(?P<suffix>[numkMGTPE]|[KMGTPE]i)?)"
)

_BYTES = re.compile(r".*[MGTPE]i?")
_MIB = 1 << 20

LONGEST_TEXT = 64
"""No real quantity is longer; a million digits would be an attack on the parser."""
LARGEST_QUANTITY = Fraction(2**63 - 1)
"""Kubernetes takes a larger one for this."""


class QuantityError(ValueError):
    """A text is not a quantity, or not a whole number where one is required; one sentence."""


def mebibytes(text: str) -> int:
    """Reads an amount of memory of a GPU: MiB, or bytes with a suffix from M on. A part of a MiB counts as a whole one.
    Raises QuantityError, also for `8e3`, `8192.0` and `8k`, which are bytes as Kubernetes reads them and look like MiB.
    """
    if text.isascii() and text.isdigit() and len(text) <= LONGEST_TEXT:
        return int(text)
    if not _BYTES.fullmatch(text):
        raise QuantityError(f"expected MiB such as 8192, or 8Gi, found {text[:LONGEST_TEXT]!r}")
    return ceil(parse_quantity(text) / _MIB)


@lru_cache(maxsize=1024, typed=True)
def parse_quantity(text: str | int | float) -> Fraction:
    """Returns the exact value. A JSON number counts as its decimal text. Raises QuantityError."""
    shown = str(text) if not isinstance(text, bool) else ""
    match = _FORM.fullmatch(shown) if len(shown) <= LONGEST_TEXT else None
    if match is None:
        raise QuantityError(f"expected a quantity such as 1, 500m, 4k or 1Gi, found {str(text)[:LONGEST_TEXT]!r}")
    if match["exponent"]:
        return Fraction(match["number"]) * Fraction(10) ** int(match["exponent"])
    return Fraction(match["number"]) * _SUFFIXES[match["suffix"] or ""]


def integer_quantity(text: str | int | float) -> int:
    """Returns the value as a whole number: `4k` is 4000, `1Gi` 1073741824, `2000m` 2. Raises QuantityError."""
    if type(text) is int:
        return text
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= LONGEST_TEXT:
        return int(text)  # the usual form, read for every container of every pod
    value = parse_quantity(text)
    if value.denominator != 1:
        raise QuantityError(f"expected a whole number, found {str(text)!r}")
    return value.numerator


def readable_quantity(text: str | int | float) -> int:
    """Returns the value as a whole number, 0 if it cannot be read as one."""
    try:
        return integer_quantity(text)
    except QuantityError:
        return 0
