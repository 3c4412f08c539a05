"""Quantities in the form that the API server answers: the largest suffix that needs no fraction (pure).

Source: Kubernetes API reference, Quantity, "canonical form".
"""

from fractions import Fraction
from functools import lru_cache

from proto.quantity import QuantityError, parse_quantity
from simulation.apiserver.errors import JsonObject, NotOfItsType

_DECIMAL = {18: "E", 15: "P", 12: "T", 9: "G", 6: "M", 3: "k", 0: "", -3: "m", -6: "u", -9: "n"}
_BINARY = ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki", "")


def canonical(written: object) -> str:
    """`1000` becomes `1k`, `1024Mi` `1Gi`, `0.5` `500m`; an exponent stays one. Raises NotOfItsType."""
    if isinstance(written, bool) or not isinstance(written, str | int | float):
        raise NotOfItsType(f"quantities must be texts or numbers, found {written!r}")
    return _canonical(str(written))


@lru_cache(maxsize=4096)
def _canonical(text: str) -> str:
    try:
        value = parse_quantity(text)
    except QuantityError as error:
        raise NotOfItsType(f"quantities must match the regular expression of quantities: {error}") from error
    if text.endswith("i") and abs(value) >= 1024:
        return _binary(-(-value.numerator // value.denominator))
    power = next((power for power in _DECIMAL if (value / Fraction(10) ** power).denominator == 1), -9)
    number = -(-value // Fraction(10) ** power) if value else 0
    exponent = "e" in text.lower() and not text.endswith("E")
    suffix = (f"e{power}" if power else "") if exponent else _DECIMAL[power]
    return f"{number}{suffix if value else ''}"


def _binary(value: int) -> str:
    for place, suffix in enumerate(_BINARY):
        size: int = 1024 ** (len(_BINARY) - 1 - place)
        if value % size == 0:
            return f"{value // size}{suffix}"
    raise AssertionError("every whole number is a multiple of one")


def amounts(held: object) -> JsonObject:
    """Returns quantities by resource, each in its canonical form. Raises NotOfItsType."""
    if not isinstance(held, dict):
        raise NotOfItsType(f"expected quantities by name, found {held!r}")
    return {str(name): canonical(amount) for name, amount in held.items()}
