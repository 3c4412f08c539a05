"""Reads JSON and numbers inside annotation values; errors name the place."""

from typing import TypeVar

import msgspec

from proto.annotations.errors import AnnotationError
from proto.decoding import decoded, shortened
from proto.devices import LARGEST

V = TypeVar("V")

LONGEST_NUMBER = 18
"""The most digits that always fit 64 bits."""


def decode_json(key: str, text: str, kind: type[V]) -> V:
    """Decodes JSON. Raises AnnotationError naming the field path."""
    try:
        return decoded(text, kind)
    except msgspec.DecodeError as error:
        problem, _, where = str(error).partition(" - at `")
        raise AnnotationError(key, where.removeprefix("key` in `").rstrip("`"), problem) from error


def decode_integer(key: str, where: str, text: str) -> int:
    """Reads ASCII digits with an optional sign, as Go writes them. Raises AnnotationError."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= LONGEST_NUMBER):
        raise AnnotationError(key, where, f"expected a whole number, found {shortened(text)!r}")
    number = int(text)
    if abs(number) > LARGEST:
        raise AnnotationError(key, where, f"beyond {LARGEST}: {number}")
    return number


def decode_natural(key: str, where: str, text: str) -> int:
    """Reads a number, zero or more. Raises AnnotationError."""
    number = decode_integer(key, where, text)
    if number < 0:
        raise AnnotationError(key, where, f"negative: {number}")
    return number
