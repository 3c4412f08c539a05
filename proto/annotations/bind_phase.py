"""`hami.io/bind-phase` and the Unix times `hami.io/bind-time` and `hami.io/vgpu-time`."""

from datetime import UTC, datetime
from enum import StrEnum

from proto.annotations.errors import AnnotationError
from proto.annotations.keys import BIND_PHASE
from proto.annotations.values import decode_integer


class BindPhase(StrEnum):
    ALLOCATING = "allocating"
    SUCCESS = "success"
    FAILED = "failed"


def decode_phase(value: str) -> BindPhase:
    """Reads a bind phase. Raises AnnotationError for any other word."""
    try:
        return BindPhase(value)
    except ValueError:
        raise AnnotationError(BIND_PHASE, "", f"expected {', '.join(BindPhase)}, found {value!r}") from None


def encode_time(at: datetime) -> str:
    """Writes whole Unix seconds in decimal."""
    return str(int(at.timestamp()))


def decode_time(key: str, value: str) -> datetime:
    """Reads whole Unix seconds. Raises AnnotationError for anything else."""
    try:
        return datetime.fromtimestamp(decode_integer(key, "", value, most=10**18), UTC)
    except (ValueError, OverflowError, OSError):
        raise AnnotationError(key, "", f"expected Unix seconds, found {value!r}") from None
