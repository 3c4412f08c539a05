"""`topogpu.io/limits`: what enforces the shares of a node's containers."""

from enum import StrEnum


class Limits(StrEnum):
    HAMI_CORE = "hami-core"
    """HAMi-core is installed."""
    NONE = "none"
    """Nothing enforces shares: only whole GPUs are given out."""
    UNENFORCED = "unenforced"
    """Nothing enforces shares, and the node's settings allow that."""


def decode_limits(value: str | None) -> Limits:
    """Reads the annotation. HAMi's plugin, which comes with HAMi-core, does not write it. An unknown word promises
    nothing.
    """
    if value is None:
        return Limits.HAMI_CORE
    return Limits(value) if value in set(Limits) else Limits.NONE
