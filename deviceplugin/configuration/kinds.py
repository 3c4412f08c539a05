"""Kinds of values. Each reads what stands in a file and what was typed as a flag or an environment variable."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from program.address import ListenAddress, NoAddress, read_address


class Unfit(Exception):
    """The written value is not one of this kind. The text says why, where `expected` alone would not do."""


class Kind(Protocol):
    """What a setting may be."""

    @property
    def expected(self) -> str:
        """Completes the sentence "expected ..."."""

    def from_file(self, written: object) -> object:
        """The value of what YAML or JSON read. Raises Unfit."""

    def from_text(self, written: str) -> object:
        """The value of what a flag or an environment variable holds. Raises Unfit."""


_PRINTABLE = r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    expected: str
    pattern: str = f"{_PRINTABLE}*"

    def from_file(self, written: object) -> str:
        if not isinstance(written, str) or not re.fullmatch(self.pattern, written):
            raise Unfit
        return written

    from_text = from_file


def path(*, absolute: bool = False, optional: bool = False) -> Text:
    pattern = f"/{_PRINTABLE}*" if absolute else f"{_PRINTABLE}+"
    expected = "an absolute path" if absolute else "a path"
    return Text(expected=expected, pattern=f"({pattern})?" if optional else pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """One of a few words. YAML's own reading of some words (`off`, `2.9`, `1`) is undone."""

    words: tuple[str, ...]
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Words known elsewhere, and why they are refused here."""

    @property
    def expected(self) -> str:
        named = [word or '""' for word in self.words]
        return f"{', '.join(named[:-1])} or {named[-1]}"

    def from_file(self, written: object) -> str:
        if isinstance(written, bool):
            return self.from_text("on" if written else "off")
        if isinstance(written, str | int | float):
            return self.from_text(str(written))
        raise Unfit

    def from_text(self, written: str) -> str:
        word = written.lower()
        if word in self.refusals:
            raise Unfit(self.refusals[word])
        if word not in self.words:
            raise Unfit
        return word


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    minimum: int
    maximum: int

    @property
    def expected(self) -> str:
        if self.minimum == self.maximum:
            return str(self.minimum)
        return f"a whole number from {self.minimum} to {self.maximum}"

    def from_file(self, written: object) -> int:
        if not isinstance(written, int) or isinstance(written, bool) or not self.minimum <= written <= self.maximum:
            raise Unfit
        return written

    def from_text(self, written: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,18}", written):
            raise Unfit
        return self.from_file(int(written))


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    maximum: float
    above: float | None = None
    """The smallest values lie above this one; without it, zero is the smallest."""

    @property
    def expected(self) -> str:
        start = "from 0" if self.above is None else f"above {self.above:g} and"
        return f"a number {start} up to {self.maximum:.9g}"

    def from_file(self, written: object) -> float:
        if not isinstance(written, int | float) or isinstance(written, bool):
            raise Unfit
        fits = written >= 0 if self.above is None else written > self.above
        if not fits or written > self.maximum:
            raise Unfit
        return float(written)

    def from_text(self, written: str) -> float:
        try:
            number = float(written)
        except ValueError as error:
            raise Unfit from error
        if not math.isfinite(number):
            raise Unfit
        return self.from_file(number)


_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})
"""Go's strconv.ParseBool, with which HAMi reads its flags and environment."""


@dataclass(frozen=True, slots=True)
class Switch:
    expected: str = "true or false"

    def from_file(self, written: object) -> bool:
        if not isinstance(written, bool):
            raise Unfit
        return written

    def from_text(self, written: str) -> bool:
        if written not in _TRUE | _FALSE:
            raise Unfit
        return written in _TRUE


@dataclass(frozen=True, slots=True, kw_only=True)
class Several:
    """A list in a file; a comma list in a flag, and in a file where HAMi has one."""

    of: Kind
    at_least: int = 0

    @property
    def expected(self) -> str:
        return f"a list, each {self.of.expected}"

    def from_file(self, written: object) -> tuple[object, ...]:
        if isinstance(written, str):
            return self.from_text(written)
        if not isinstance(written, list) or len(written) < self.at_least:
            raise Unfit
        return tuple(self.of.from_file(one) for one in written)

    def from_text(self, written: str) -> tuple[object, ...]:
        words = [word.strip() for word in written.split(",")] if written.strip() else []
        if len(words) < self.at_least:
            raise Unfit
        return tuple(self.of.from_text(word) for word in words)


@dataclass(frozen=True, slots=True)
class BindAddress:
    """`host:port`, `:port` for every interface, `[v6]:port`; empty for None."""

    expected: str = "host:port, :port for every interface, or nothing to switch it off"

    def from_file(self, written: object) -> ListenAddress | None:
        if not isinstance(written, str):
            raise Unfit
        return self.from_text(written)

    def from_text(self, written: str) -> ListenAddress | None:
        try:
            return read_address(written) if written else None
        except NoAddress as error:
            raise Unfit from error
