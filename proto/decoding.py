"""Decodes JSON and plain values into typed ones, from any thread.

msgspec reads the fields of a class at its first use and keeps them with the class before they are complete. A second
thread that decodes into the class meanwhile ends the process (msgspec 0.22: SIGSEGV). So one thread at a time makes
decoders here, and only complete classes are used.
"""

from functools import cache
from threading import Lock
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")

_MAKING = Lock()


@cache
def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Returns the decoder of a type. All classes of the type can then be decoded into without it."""
    with _MAKING:
        return msgspec.json.Decoder(kind)


@overload
def decoded(text: bytes | bytearray | str | msgspec.Raw, kind: type[T]) -> T: ...
@overload
def decoded(text: bytes | bytearray | str | msgspec.Raw, kind: Any) -> Any: ...
def decoded(text: bytes | bytearray | str | msgspec.Raw, kind: Any) -> Any:
    """Decodes JSON. Raises msgspec.DecodeError, also for text that is not UTF-8 or nested too deeply."""
    try:
        return decoder(kind).decode(text)
    except UnicodeError as error:
        raise msgspec.DecodeError("not UTF-8 text") from error
    except RecursionError as error:
        raise msgspec.DecodeError("nested too deeply") from error


@overload
def converted(value: Any, kind: type[T]) -> T: ...
@overload
def converted(value: Any, kind: Any) -> Any: ...
def converted(value: Any, kind: Any) -> Any:
    """Converts dictionaries and lists. Raises msgspec.ValidationError."""
    decoder(kind)
    return msgspec.convert(value, kind)


NAME = 64
"""The most characters of a name or number within a sentence: as long as a label."""


def shortened(text: str, most: int = NAME) -> str:
    """Returns at most `most` characters; a text that was cut ends with `…`."""
    return text if len(text) <= most else text[: most - 1] + "…"
