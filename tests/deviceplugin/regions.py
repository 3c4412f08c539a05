"""HAMi-core's shared regions as its own library writes them, for version 1.1 and 1.2."""

import struct
from dataclasses import dataclass, field

V1_BYTES = 2_008_953


@dataclass
class Slot:
    status: int = 1
    memory: dict[int, tuple[int, int, int, int, int]] = field(default_factory=dict)
    """By device: context, module, data, offset, total."""
    sm: dict[int, int] = field(default_factory=dict)
    host_pid: int = 0


def v1(uuids: list[str], slots: list[Slot], *, limit: int = 1 << 30, minor: int = 2, last_kernel: int = 0) -> bytearray:
    region = bytearray(V1_BYTES)
    struct.pack_into("<iII", region, 0, 19920718, 1, minor)
    struct.pack_into("<Q", region, 56, len(uuids))
    for number, uuid in enumerate(uuids):
        region[64 + 96 * number : 64 + 96 * number + len(uuid)] = uuid.encode()
        struct.pack_into("<Q", region, 1600 + 8 * number, limit)
        struct.pack_into("<Q", region, 1728 + 8 * number, 30)
    for number, slot in enumerate(slots):
        at = 1856 + 1960 * number
        struct.pack_into("<i", region, at + 4, slot.host_pid)
        for device, memory in slot.memory.items():
            struct.pack_into("<5Q", region, at + 8 + 64 * device, *memory)
        for device, percent in slot.sm.items():
            struct.pack_into("<Q", region, at + 1160 + 48 * device + 16, percent)
        struct.pack_into("<i", region, at + 1928, slot.status)
    struct.pack_into("<i", region, 2_008_896, len(slots))
    struct.pack_into("<ii", region, 2_008_900, 1, 2)
    struct.pack_into("<Q", region, 2_008_912, last_kernel)
    return region
