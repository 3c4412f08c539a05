"""Amounts as people type them: memory and cores of a GPU, and the types of their options. No IO."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import click

from proto.quantity import QuantityError, mebibytes

_BYTES = re.compile(r"(?<=[KMGTPE])B$|(?<=[KMGTPE]i)B$")
_PERCENT = re.compile(r"(?P<number>[0-9]{1,9})\s*%")


class AmountError(ValueError):
    """The text is no amount; one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedMemory:
    """Memory of a GPU: in MiB, or in percent of what it has. The other is None."""

    mib: int | None = None
    percent: int | None = None


def read_memory(text: str) -> RequestedMemory:
    """Reads `8192` and `8192MiB`, `8Gi` as Kubernetes writes it, `8 GiB`, and `50%`. A part of a MiB counts as a
    whole one. Raises AmountError.
    """
    plain = text.strip()
    if plain.endswith("%"):
        return RequestedMemory(percent=read_percent(plain))
    try:
        return RequestedMemory(mib=_positive(mebibytes(_BYTES.sub("", "".join(plain.split()))), text))
    except QuantityError as error:
        raise AmountError(f"expected memory such as 8192 (MiB), 8Gi or 50%, found {text[:40]!r}") from error


def read_percent(text: str) -> int:
    """Reads `20` and `20%`. Raises AmountError."""
    plain = text.strip()
    found = _PERCENT.fullmatch(plain if plain.endswith("%") else f"{plain}%")
    number = int(found["number"]) if found else -1
    if not 0 <= number <= 100:
        raise AmountError(f"expected a percentage from 0 to 100, such as 20 or 20%, found {text[:40]!r}")
    return number


def _positive(mib: int, text: str) -> int:
    if not 0 < mib < 2**31:
        raise AmountError(f"expected more than no memory, and less than 2 PiB, found {text[:40]!r}")
    return mib


T = TypeVar("T")


class AmountType(click.ParamType[T], Generic[T]):
    def __init__(self, name: str, read: Callable[[str], T]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        try:
            return self._read(str(value))
        except AmountError as error:
            self.fail(str(error), param, ctx)


MEMORY = AmountType("memory", read_memory)
PERCENT = AmountType("percent", read_percent)
