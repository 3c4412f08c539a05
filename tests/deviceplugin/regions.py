"""HAMi-core's shared regions as its own library writes them, for version 1.1/1.2 and the older one (v0)."""

import struct
from dataclasses import dataclass, field

V1_BYTES, V0_BYTES = 2_008_953, 1_197_897


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
    _head(region, uuids, device_num=56, at=64, limits=1600, sm_limits=1728)
    for number, slot in enumerate(slots):
        _slot(region, 1856 + 1960 * number, slot, memory_size=64, utilization=1160, utilization_size=48, status=1928)
    struct.pack_into("<i", region, 2_008_896, len(slots))
    struct.pack_into("<ii", region, 2_008_900, 1, 2)
    struct.pack_into("<Q", region, 2_008_912, last_kernel)
    return region


def v0(uuids: list[str], slots: list[Slot]) -> bytearray:
    region = bytearray(V0_BYTES)
    struct.pack_into("<i", region, 0, 19920718)
    _head(region, uuids, device_num=48, at=56, limits=1592, sm_limits=1720)
    for number, slot in enumerate(slots):
        _slot(region, 1848 + 1168 * number, slot, memory_size=40, utilization=776, utilization_size=24, status=1160)
    struct.pack_into("<iii", region, 1_197_880, len(slots), 1, 2)
    return region


def _head(region: bytearray, uuids: list[str], *, device_num: int, at: int, limits: int, sm_limits: int) -> None:
    struct.pack_into("<Q", region, device_num, len(uuids))
    for number, uuid in enumerate(uuids):
        region[at + 96 * number : at + 96 * number + len(uuid)] = uuid.encode()
        struct.pack_into("<Q", region, limits + 8 * number, 1 << 30)
        struct.pack_into("<Q", region, sm_limits + 8 * number, 30)


def _slot(
    region: bytearray, at: int, slot: Slot, *, memory_size: int, utilization: int, utilization_size: int, status: int
) -> None:
    struct.pack_into("<i", region, at + 4, slot.host_pid)
    for device, memory in slot.memory.items():
        struct.pack_into("<5Q", region, at + 8 + memory_size * device, *memory)
    for device, percent in slot.sm.items():
        struct.pack_into("<Q", region, at + utilization + utilization_size * device + 16, percent)
    struct.pack_into("<i", region, at + status, slot.status)
