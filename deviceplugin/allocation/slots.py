"""Slots: the CDI devices `topogpu.io/slot=<hash of ids>` that stand for whoever holds these ids.

Allocate answers with the slot's name and so commits to nothing; its spec is written when the holder is proven.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from deviceplugin.container.cdi import spec_file_name
from deviceplugin.container.edits import NO_DEVICES, VISIBLE_DEVICES, ContainerEdits
from proto.devices import ContainerShares, DeviceShare

SLOT_KIND = "topogpu.io/slot"
TRIAL_FILE = ".topogpu-trial"
"""Written and removed again, to see whether the folder takes specs."""
NOT_APPLIED = "topogpu-slot-not-applied"
"""What NVIDIA_VISIBLE_DEVICES says until the slot's spec replaces it. NVIDIA's runtime knows no such device and refuses
the container, in its legacy mode as in its CDI mode; other runtimes show no GPU for it.
"""
_HASH_LENGTH = 32
_BEFORE, _AFTER = spec_file_name(SLOT_KIND, "/").split("/")


@dataclass(frozen=True, slots=True)
class Sweep:
    """`unheld` says since when (monotonic seconds) each slot that nobody holds has been seen so; `stale` may go."""

    stale: frozenset[str]
    unheld: Mapping[str, float]


def slot_name(ids: Collection[str]) -> str:
    """The same for the same ids in any order; a valid CDI device name."""
    return hashlib.sha256("\n".join(sorted(set(ids))).encode()).hexdigest()[:_HASH_LENGTH]


def qualified(slot: str) -> str:
    """The slot as runtimes name it."""
    return f"{SLOT_KIND}={slot}"


def named(slot: str) -> ContainerEdits:
    """What Allocate answers: by itself it shows no GPU, whatever environment the image has."""
    return ContainerEdits(env={VISIBLE_DEVICES: NOT_APPLIED}, cdi_devices=(qualified(slot),))


def applied(edits: ContainerEdits) -> ContainerEdits:
    """What the slot's spec does: these edits, and in any case another value than Allocate answered."""
    return replace(edits, env={VISIBLE_DEVICES: NO_DEVICES, **edits.env})


def slot_file(slot: str) -> str:
    """The name of the slot's spec file."""
    return spec_file_name(SLOT_KIND, slot)


def slot_of_file(name: str) -> str | None:
    """The slot whose spec file has this name, None for other files."""
    slot = name.removeprefix(_BEFORE).removesuffix(_AFTER)
    return slot if name == slot_file(slot) and len(slot) == _HASH_LENGTH else None


def sweep(
    files: Collection[str], held: Collection[str], unheld: Mapping[str, float], now: float, grace_seconds: float
) -> Sweep:
    """Which of the slots with files have been held by nobody for the grace. `unheld` is the last sweep's."""
    since = {slot: unheld.get(slot, now) for slot in files if slot not in held}
    return Sweep(frozenset(slot for slot, seen in since.items() if now - seen >= grace_seconds), since)


def larger(sharing: Sequence[ContainerShares]) -> ContainerShares:
    """Of every GPU the larger limits that any container of a slot has. All have the same GPUs."""
    by_uuid = [{share.uuid: share for share in shares} for shares in sharing]
    return tuple(_larger([shares[first.uuid] for shares in by_uuid]) for first in sharing[0])


def _larger(shares: Sequence[DeviceShare]) -> DeviceShare:
    """0 is the largest: the whole memory, and no limit of cores."""
    memory, cores = [share.memory_mib for share in shares], [share.cores for share in shares]
    return DeviceShare(
        uuid=shares[0].uuid,
        memory_mib=max(memory) if all(memory) else 0,
        cores=max(cores) if all(cores) else 0,
        instance=shares[0].instance,
    )
