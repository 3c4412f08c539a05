"""Kinds of values. Each reads a value from a file, and from the text of a flag or an environment variable."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, Protocol

from program.address import ADDRESS_PATTERN, read_address

Schema = Mapping[str, Any]
"""JSON schema, draft 7."""


class UnfitValue(Exception):
    """The written value is not one of this kind. The text has the reason, where `expected` is not enough."""


class Kind(Protocol):
    """The values that a setting accepts."""

    @property
    def expected(self) -> str:
        """Completes the sentence "expected ..."."""

    @property
    def choices(self) -> tuple[str, ...]:
        """Returns words that shell completion offers."""
        return ()

    @property
    def schema(self) -> Schema:
        """Returns the schema of the value in a file. It may allow more than `from_file`."""

    def from_file(self, written: object) -> object:
        """Converts what YAML or JSON read. Raises Unfit."""

    def from_text(self, written: str) -> object:
        """Converts the text of a flag or an environment variable. Raises Unfit."""

    def to_file(self, value: Any) -> object:
        """Returns what `from_file` reads as this value."""
        return value


_LARGEST = 2**53
"""Whole numbers up to here are the same in every reader of JSON."""
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff]")
DNS_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DNS_NAME = rf"{DNS_LABEL}(\.{DNS_LABEL})*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Text(Kind):
    """Text of printable characters. `pattern` is read by Python and, in the schema, by Go."""

    expected: str
    pattern: str = ".*"
    longest: int = 4096

    @property
    def schema(self) -> Schema:
        return {"type": "string"} | ({} if self.pattern == ".*" else {"pattern": f"^({self.pattern})$"})

    def from_file(self, written: object) -> str:
        if not isinstance(written, str) or len(written) > self.longest or _UNPRINTABLE.search(written):
            raise UnfitValue
        if not re.fullmatch(self.pattern, written):
            raise UnfitValue
        return written

    from_text = from_file


def path(*, absolute: bool = False, optional: bool = False) -> Text:
    pattern = "/.*" if absolute else ".+"
    expected = "an absolute path" if absolute else "a path"
    return Text(expected=expected, pattern=f"({pattern})?" if optional else pattern)


def dns_name(expected: str, *, optional: bool = False) -> Text:
    return Text(expected=expected, pattern=f"({DNS_NAME})?" if optional else DNS_NAME, longest=253)


RESOURCE = Text(
    expected="a resource name such as nvidia.com/gpu",
    pattern=rf"{DNS_NAME}/[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?",
    longest=253 + 1 + 63,
)


_SWITCH_WORDS = {"true": "on", "false": "off"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Words(Kind):
    """One of a few words. YAML reads some of them (`off`, `2.9`, `1`) as other types; this is undone."""

    words: tuple[str, ...]
    make: Callable[[str], str] = str
    """A word's value."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Words known elsewhere, and why they are refused here."""

    @property
    def expected(self) -> str:
        *others, last = [word or '""' for word in self.words]
        return f"{', '.join(others)} or {last}"

    @property
    def choices(self) -> tuple[str, ...]:
        return tuple(filter(None, self.words))

    @property
    def schema(self) -> Schema:
        numbers = [float(word) if "." in word else int(word) for word in self.words if re.fullmatch(r"[\d.]+", word)]
        switches = [is_on for is_on, word in ((True, "on"), (False, "off")) if word in self.words]
        return {"enum": [*self.words, *numbers, *switches]}

    def from_file(self, written: object) -> str:
        if isinstance(written, str | int | float):
            return self.from_text(str(written))
        raise UnfitValue

    def from_text(self, written: str) -> str:
        word = _SWITCH_WORDS.get(written.lower(), written.lower())
        if word in self.refusals:
            raise UnfitValue(self.refusals[word])
        if word not in self.words:
            raise UnfitValue
        return self.make(word)

    def to_file(self, value: Any) -> object:
        return str(value)


def words_of(enum: type[StrEnum]) -> Words:
    return Words(words=tuple(str(word) for word in enum), make=enum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole(Kind):
    minimum: int
    maximum: int = 2**31 - 1
    zero: int = 0
    """The number that 0 stands for."""

    @property
    def expected(self) -> str:
        if self.minimum == self.maximum:
            return str(self.minimum)
        return f"a whole number from {self.minimum} to {self.maximum}"

    @property
    def schema(self) -> Schema:
        return {"type": "integer", "minimum": self.minimum, "maximum": self.maximum}

    def from_file(self, written: object) -> int:
        if not isinstance(written, int) or isinstance(written, bool) or not self.minimum <= written <= self.maximum:
            raise UnfitValue
        return written or self.zero

    def from_text(self, written: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,18}", written):
            raise UnfitValue
        return self.from_file(int(written))


@dataclass(frozen=True, slots=True, kw_only=True)
class Number(Kind):
    maximum: float
    above: float | None = None
    """The values are above this one; without it, zero or more."""

    @property
    def expected(self) -> str:
        start = "from 0" if self.above is None else f"above {self.above:g} and"
        return f"a number {start} up to {self.maximum:.9g}"

    @property
    def schema(self) -> Schema:
        least = {"minimum": 0} if self.above is None else {"exclusiveMinimum": self.above}
        return {"type": "number", **least, "maximum": self.maximum}

    def from_file(self, written: object) -> float:
        if not isinstance(written, int | float) or isinstance(written, bool):
            raise UnfitValue
        fits = written >= 0 if self.above is None else written > self.above
        if not fits or written > self.maximum:
            raise UnfitValue
        return float(written)

    def from_text(self, written: str) -> float:
        try:
            number = float(written)
        except ValueError as error:
            raise UnfitValue from error
        if not math.isfinite(number):
            raise UnfitValue
        return self.from_file(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds(Kind):
    """A number of seconds, as a span of time."""

    of: Number

    @property
    def expected(self) -> str:
        return self.of.expected

    @property
    def schema(self) -> Schema:
        return self.of.schema

    def from_file(self, written: object) -> timedelta:
        return timedelta(seconds=self.of.from_file(written))

    def from_text(self, written: str) -> timedelta:
        return timedelta(seconds=self.of.from_text(written))

    def to_file(self, value: Any) -> object:
        return value.total_seconds()


_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})
"""Reads a boolean as Go's strconv.ParseBool does; HAMi reads its flags and environment with it."""


@dataclass(frozen=True, slots=True)
class Switch(Kind):
    expected: str = "true or false"

    @property
    def choices(self) -> tuple[str, ...]:
        return ("true", "false")

    @property
    def schema(self) -> Schema:
        return {"type": "boolean"}

    def from_file(self, written: object) -> bool:
        if not isinstance(written, bool):
            raise UnfitValue
        return written

    def from_text(self, written: str) -> bool:
        if written not in _TRUE | _FALSE:
            raise UnfitValue
        return written in _TRUE


@dataclass(frozen=True, slots=True, kw_only=True)
class Several(Kind):
    """A list in a file; a comma list in a flag, and in a file where HAMi has one."""

    of: Kind
    at_least: int = 0
    none: str = ""
    """A word for the empty list."""

    @property
    def expected(self) -> str:
        return f"{self.none}{' or ' if self.none else ''}a list, each {self.of.expected}"

    @property
    def choices(self) -> tuple[str, ...]:
        return self.of.choices

    @property
    def schema(self) -> Schema:
        listed = {"type": "array", "items": self.of.schema, "minItems": self.at_least}
        return {"anyOf": [listed, self.of.schema, {"enum": [self.none, False]}]} if self.none else listed

    def from_file(self, written: object) -> tuple[object, ...]:
        if written is False and self.none:
            return ()
        if isinstance(written, str):
            return self.from_text(written)
        if not isinstance(written, list) or len(written) < self.at_least:
            raise UnfitValue
        return tuple(self.of.from_file(one) for one in written)

    def from_text(self, written: str) -> tuple[object, ...]:
        text = written.strip()
        words = [] if text in ("", self.none) else [word.strip() for word in text.split(",")]
        if len(words) < self.at_least:
            raise UnfitValue
        return tuple(self.of.from_text(word) for word in words)

    def to_file(self, value: Any) -> object:
        return [self.of.to_file(one) for one in value] or self.none or []


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed(Kind):
    """Text with its own reader and writer. `read` raises ValueError for what it cannot read."""

    expected: str
    read: Callable[[str], object]
    write: Callable[[Any], str]
    pattern: str
    """The pattern of what `read` reads, for the schema: it may match more."""
    choices: tuple[str, ...] = ()
    numbers: bool = False
    """A file may have whole numbers in place of texts of digits."""

    @property
    def schema(self) -> Schema:
        return {"type": ["string", "integer"] if self.numbers else "string", "pattern": f"^({self.pattern})$"}

    def from_file(self, written: object) -> object:
        if self.numbers and isinstance(written, int) and not isinstance(written, bool):
            return self._from_number(written)
        if not isinstance(written, str):
            raise UnfitValue
        return self.from_text(written)

    def _from_number(self, written: int) -> object:
        if abs(written) > _LARGEST:
            raise UnfitValue
        return self.from_text(str(written))

    def from_text(self, written: str) -> object:
        try:
            return self.read(written)
        except ValueError as error:
            raise UnfitValue from error

    def to_file(self, value: Any) -> object:
        return self.write(value)


ADDRESS = Parsed(
    expected="host:port, or :port for every interface", read=read_address, write=str, pattern=ADDRESS_PATTERN
)
OPTIONAL_ADDRESS = Parsed(
    expected="host:port, :port for every interface, or nothing to switch it off",
    read=lambda text: read_address(text) if text else None,
    write=lambda address: "" if address is None else str(address),
    pattern=f"({ADDRESS_PATTERN})?",
)

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_DURATION_PATTERN = rf"0|({_DURATION.pattern})+"
_UNIT_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_LONGEST_SECONDS = 366 * 24 * 3600.0


def read_duration(text: str) -> float:
    """Returns seconds in a Go duration such as `5m`, `1m30s` or `500ms`; `0` needs no unit. Raises ValueError."""
    parts = [("0", "s")] if text == "0" else _DURATION.findall(text)
    if not parts or (text != "0" and "".join(number + unit for number, unit in parts) != text):
        raise ValueError(f"{text!r} is not a duration")
    seconds = sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts)
    if seconds > _LONGEST_SECONDS:
        raise ValueError(f"{text!r} is longer than a year")
    return seconds


def duration_text(seconds: float) -> str:
    """Writes a duration in the largest unit that gives a whole number."""
    unit = next((unit for unit, size in _UNIT_SECONDS.items() if seconds and seconds % size == 0), "s")
    return f"{seconds / _UNIT_SECONDS[unit]:.9g}{unit}"


def _above_zero(text: str) -> float:
    seconds = read_duration(text)
    if seconds <= 0:
        raise ValueError(f"{text!r} is not above zero")
    return seconds


DURATION = Parsed(
    expected="a duration above zero and up to a year, such as 5m, 90s or 1m30s",
    read=_above_zero,
    write=duration_text,
    pattern=_DURATION_PATTERN,
)
DURATION_OR_ZERO = Parsed(
    expected="0 or a duration up to a year, such as 5m, 90s or 1m30s",
    read=read_duration,
    write=duration_text,
    pattern=_DURATION_PATTERN,
)
