"""JSON Patch (RFC 6902): the operations between two documents."""

from collections.abc import Iterator, Mapping
from typing import Any

from proto.admission import Json


def difference(before: Any, after: Any, path: str = "") -> Iterator[Json]:
    """Yields the operations that turn `before` into `after`; none for equal parts. Lists may only grow at their end
    or shrink.
    """
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _members(before, after, path)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _items(before, after, path)
    else:
        yield {"op": "replace", "path": path, "value": after}


def _members(before: Mapping[str, Any], after: Mapping[str, Any], path: str) -> Iterator[Json]:
    for key in before:
        if key not in after:
            yield {"op": "remove", "path": f"{path}/{pointer_token(key)}"}
    for key, value in after.items():
        if key not in before:
            yield {"op": "add", "path": f"{path}/{pointer_token(key)}", "value": value}
        elif before[key] is not value:
            yield from difference(before[key], value, f"{path}/{pointer_token(key)}")


def _items(before: list[Any], after: list[Any], path: str) -> Iterator[Json]:
    for index, (old, new) in enumerate(zip(before, after, strict=False)):
        if old is not new:
            yield from difference(old, new, f"{path}/{index}")
    for index in reversed(range(len(after), len(before))):
        yield {"op": "remove", "path": f"{path}/{index}"}
    for value in after[len(before) :]:
        yield {"op": "add", "path": f"{path}/-", "value": value}


def pointer_token(key: str) -> str:
    """A member's name as JSON Pointer (RFC 6901) writes it."""
    return key.replace("~", "~0").replace("/", "~1")
