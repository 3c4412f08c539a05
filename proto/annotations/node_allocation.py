"""`topogpu.io/allocation`: how a node's `Allocate` learns which pod it serves."""

from enum import StrEnum


class AllocationMode(StrEnum):
    SLOTS = "slots"
    """The device ids identify the container: each container has its own."""
    IMMEDIATE = "immediate"
    """The node lock identifies the pod."""


def decode_mode(value: str | None) -> AllocationMode:
    """Reads the mode. Nodes of HAMi's plugin have no such annotation; every word but `slots` means that the node needs
    the lock.
    """
    return AllocationMode.SLOTS if value == AllocationMode.SLOTS else AllocationMode.IMMEDIATE
