"""`topogpu.io/limits`: what enforces the shares of a node's containers."""

from enum import StrEnum


class NodeLimits(StrEnum):
    HAMI_CORE = "hami-core"
    """HAMi-core is installed. It holds a container to a part of one GPU: parts of several are not given out."""
    PARTLY_ENFORCED = "partly-enforced"
    """HAMi-core is installed, and the node's settings allow parts of several GPUs, to which nothing holds a container
    for sure.
    """
    NONE = "none"
    """Nothing enforces shares: only whole GPUs are given out."""
    UNENFORCED = "unenforced"
    """Nothing enforces shares, and the node's settings allow that."""


def decode_limits(value: str | None) -> NodeLimits:
    """Reads the annotation. HAMi's plugin, which comes with HAMi-core and gives out parts of several GPUs, does not
    write it. An unknown word promises nothing.
    """
    if value is None:
        return NodeLimits.PARTLY_ENFORCED
    return NodeLimits(value) if value in set(NodeLimits) else NodeLimits.NONE
