"""`hami.io/bind-phase` and the Unix times `hami.io/bind-time` and `hami.io/vgpu-time`."""

from datetime import datetime
from enum import StrEnum


class BindPhase(StrEnum):
    ALLOCATING = "allocating"
    SUCCESS = "success"
    FAILED = "failed"


def encode_time(at: datetime) -> str:
    """Writes whole Unix seconds in decimal."""
    return str(int(at.timestamp()))
