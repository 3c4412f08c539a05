"""The names of slots: CDI devices `topogpu.io/slot=<name>`."""

from collections.abc import Sequence

SLOT_KIND = "topogpu.io/slot"
_PREFIX = f"{SLOT_KIND}="


def qualified(slot: str) -> str:
    """Returns the slot as runtimes name it."""
    return f"{_PREFIX}{slot}"


def slot_in(cdi_devices: Sequence[str]) -> str:
    """Returns the slot that an Allocate answer names; empty if none."""
    return next((name.removeprefix(_PREFIX) for name in cdi_devices if name.startswith(_PREFIX)), "")
