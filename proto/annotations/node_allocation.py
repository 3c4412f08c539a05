"""`topogpu.io/allocation`: how a node's `Allocate` learns which pod it serves."""

from enum import StrEnum


class AllocationMode(StrEnum):
    SLOTS = "slots"
    """By device ids of which each container has its own."""
    IMMEDIATE = "immediate"
    """By the node lock."""


def decode_mode(value: str | None) -> AllocationMode:
    """Nodes of HAMi's plugin say nothing. Every word but `slots` means that the node needs the lock."""
    return AllocationMode.SLOTS if value == AllocationMode.SLOTS else AllocationMode.IMMEDIATE
