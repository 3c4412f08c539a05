"""`topogpu.io/unhealthy-since`: since when GPUs of the node have been unhealthy.

`{"GPU-a":"2030-01-01T00:00:00Z"}`. A GPU that does not report its UUID is named by its place: `GPU 2 at 0000:41:00.0`.
The node daemon writes it, and reads it after a restart.
"""

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from proto.annotations.errors import AnnotationError
from proto.annotations.keys import NODE_UNHEALTHY
from proto.annotations.values import decode_json


def encode_unhealthy(since: Mapping[str, datetime]) -> str:
    """Writes the times, to the second, in the order of the names."""
    return msgspec.json.encode({name: stamp(at) for name, at in sorted(since.items())}).decode()


def decode_unhealthy(value: str) -> Mapping[str, datetime]:
    """Reads the times. Raises AnnotationError naming the GPU whose time cannot be read."""
    found = decode_json(NODE_UNHEALTHY, value, dict[str, str])
    return {name: read_time(NODE_UNHEALTHY, f"$.{name}", text) for name, text in found.items()}


def stamp(at: datetime) -> str:
    """Writes a time as Kubernetes does."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_time(key: str, where: str, text: str) -> datetime:
    """Reads a time, in UTC. Raises AnnotationError, also for a time without a zone."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise AnnotationError(key, where, f"expected a time, found {text[:40]!r}") from error
    if at.tzinfo is None:
        raise AnnotationError(key, where, f"expected a time with its zone, found {text[:40]!r}")
    try:
        return at.astimezone(UTC)
    except OverflowError as error:
        raise AnnotationError(key, where, f"expected a time, found {text[:40]!r}") from error
