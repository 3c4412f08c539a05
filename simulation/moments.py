"""Moments of a stand-in: what waits there for something else, such as a fault, to happen first."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


async def pass_by(_: object) -> None:
    """Does nothing."""


@dataclass(slots=True)
class Moments(Generic[T]):
    """Both are awaited, with a description of the call: `before` it begins, and `after` it was carried out but before
    its caller learns of it.
    """

    before: Callable[[T], Awaitable[None]] = pass_by
    after: Callable[[T], Awaitable[None]] = pass_by
