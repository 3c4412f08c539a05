"""The one error of every annotation decoder."""

from collections.abc import Callable
from typing import TypeVar

from proto.decoding import shortened

T = TypeVar("T")

_LONGEST_WORDS = 200
"""An annotation may have 256 KiB."""


class AnnotationError(ValueError):
    """An annotation has no form that this version reads.

    `key` is the annotation, `where` the position inside its value, `problem` the reason.
    """

    def __init__(self, key: str, where: str, problem: str) -> None:
        where, problem = shortened(where, _LONGEST_WORDS), shortened(problem, _LONGEST_WORDS)
        super().__init__(f"{key}: {where}: {problem}" if where else f"{key}: {problem}")
        self.key = key
        self.where = where
        self.problem = problem


def readable(decode: Callable[[str], T], value: str | None) -> T | None:
    """Returns the decoded annotation; None without one, or for one that cannot be read."""
    return attempted(decode, value)[0]


def attempted(decode: Callable[[str], T], value: str | None) -> tuple[T | None, str]:
    """Returns the same, and why it cannot be read; empty if it can."""
    try:
        return (decode(value) if value else None), ""
    except AnnotationError as error:
        return None, str(error)
