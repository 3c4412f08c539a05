"""`topogpu.io/limits`: what holds the containers of a node to their parts of a GPU."""

from enum import StrEnum


class Limits(StrEnum):
    HAMI_CORE = "hami-core"
    """HAMi-core is installed."""
    NONE = "none"
    """Nothing does: only whole GPUs are given out."""
    UNENFORCED = "unenforced"
    """Nothing does, and the node's settings allow that."""


def decode_limits(value: str | None) -> Limits:
    """Nodes of HAMi's plugin, which comes with HAMi-core, say nothing. A word that is not known promises nothing."""
    if value is None:
        return Limits.HAMI_CORE
    return Limits(value) if value in set(Limits) else Limits.NONE
