"""Decodes the API server's JSON into typed objects: single objects, list pages and the lines of a watch."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Generic, TypeVar

import msgspec

from proto.decoding import converted, decoded
from proto.kubernetes.objects import ListMeta, Object, ObjectList, ObjectMeta, Status

T = TypeVar("T", bound=Object)
S = TypeVar("S", bound=msgspec.Struct)

Unreadable = Callable[[str], None]
"""A function that receives one sentence about each object that had to be left out."""


class UnreadableObject(ValueError):
    """An object is JSON, but does not have the form of its kind; the message has the field path."""


class NotJson(ValueError):
    """An answer is not JSON: a proxy's page, or a body that was cut off."""


class Added(msgspec.Struct, Generic[T], frozen=True, gc=False):
    object: T


class Modified(msgspec.Struct, Generic[T], frozen=True, gc=False):
    object: T


class Deleted(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """`object` is the last state before the deletion."""

    object: T


class Bookmark(msgspec.Struct, frozen=True):
    """Everything up to `resource_version` has been sent."""

    resource_version: str


class Opened(msgspec.Struct, frozen=True):
    """The API server has accepted the watch; no event has arrived yet."""


class WatchFailed(msgspec.Struct, frozen=True):
    """The error with which the API server ends a watch."""

    status: Status


WatchEvent = Added[T] | Modified[T] | Deleted[T] | Bookmark | Opened


_CHANGES: Mapping[str, Callable[[Any], Added[Any] | Modified[Any] | Deleted[Any]]] = {
    "ADDED": Added,
    "MODIFIED": Modified,
    "DELETED": Deleted,
}


class _Envelope(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _RawList(Object):
    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[msgspec.Raw] | None = None


class _Identity(Object):
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)


def decode_object(kind: type[S], body: bytes | bytearray | msgspec.Raw) -> S:
    """Decodes one object. A null counts as a missing field, as in Go.

    Raises NotJson, or UnreadableObject naming the field.
    """
    try:
        return decoded(body, kind)
    except msgspec.ValidationError:
        return _decode_without_nulls(kind, body)
    except msgspec.DecodeError as error:
        raise NotJson(str(error)) from error


def decode_list(kind: type[T], body: bytes | bytearray, unreadable: Unreadable) -> ObjectList[T]:
    """Decodes one page of a list, without unreadable objects. Raises NotJson or UnreadableObject."""
    try:
        return decoded(body, ObjectList[kind])  # type: ignore[valid-type]
    except msgspec.ValidationError:
        raw = decode_object(_RawList, body)
    except msgspec.DecodeError as error:
        raise NotJson(str(error)) from error
    items = [item for row in raw.items or [] if (item := _readable(kind, row, unreadable)) is not None]
    return ObjectList(metadata=raw.metadata, items=items)


def decode_watch_line(kind: type[T], line: bytes, unreadable: Unreadable) -> WatchEvent[T] | WatchFailed | None:
    """Decodes one line of a watch; None for an event without meaning here. Raises NotJson.

    An unreadable object advances the position like a bookmark; a deleted one keeps its metadata, so that its deletion
    is still seen.
    """
    try:
        usual = decoded(line, _line_of(kind))
    except msgspec.DecodeError:
        return _decode_unusual_line(kind, line, unreadable)
    change = _CHANGES.get(usual.type)
    return _decode_unusual_line(kind, line, unreadable) if change is None else change(usual.object)


@cache
def _line_of(kind: type[Object]) -> Any:
    """Returns the type of a line with a readable object. Classes are found faster than aliases of generic ones."""
    return msgspec.defstruct("_Line", [("type", str), ("object", kind)])


def _decode_unusual_line(kind: type[T], line: bytes, unreadable: Unreadable) -> WatchEvent[T] | WatchFailed | None:
    """Decodes a line without a change of a readable object, or with nulls."""
    try:
        envelope = decoded(line, _Envelope)
    except msgspec.DecodeError as error:
        raise NotJson(str(error)) from error
    match envelope.type:
        case "ADDED":
            found = _readable(kind, envelope.object, unreadable)
            return Added(found) if found is not None else _position(envelope.object)
        case "MODIFIED":
            found = _readable(kind, envelope.object, unreadable)
            return Modified(found) if found is not None else _position(envelope.object)
        case "DELETED":
            found = _readable(kind, envelope.object, unreadable)
            return Deleted(found if found is not None else _remains(kind, envelope.object))
        case "BOOKMARK":
            return _position(envelope.object)
        case "ERROR":
            return WatchFailed(_status(envelope.object))
    return None


def _decode_without_nulls(kind: type[S], body: bytes | bytearray | msgspec.Raw) -> S:
    try:
        return converted(_without_nulls(decoded(body, Any)), kind)
    except msgspec.ValidationError as error:
        raise UnreadableObject(str(error)) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise NotJson(str(error)) from error


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in value]
    return value


def _readable(kind: type[T], raw: msgspec.Raw, unreadable: Unreadable) -> T | None:
    try:
        return decode_object(kind, raw)
    except (UnreadableObject, NotJson) as error:
        metadata = _identity(raw).metadata
        name = "/".join(part for part in (metadata.namespace, metadata.name) if part) or "(no name)"
        unreadable(f"{kind.__name__} {name} cannot be read and is left out: {error}")
        return None


def _identity(raw: msgspec.Raw) -> _Identity:
    try:
        return decode_object(_Identity, raw)
    except (UnreadableObject, NotJson):
        return _Identity()


def _position(raw: msgspec.Raw) -> Bookmark | None:
    version = _identity(raw).metadata.resource_version
    return Bookmark(version) if version else None


def _remains(kind: type[T], raw: msgspec.Raw) -> T:
    return converted({"metadata": msgspec.to_builtins(_identity(raw).metadata)}, kind)


def _status(raw: msgspec.Raw) -> Status:
    try:
        return decode_object(Status, raw)
    except (UnreadableObject, NotJson) as error:
        return Status(status="Failure", reason="Unreadable", message=str(error))
