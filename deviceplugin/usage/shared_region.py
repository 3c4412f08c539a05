"""HAMi-core's shared region: the file in which the processes of one container keep their GPU memory and limits.

The tenant can write every byte of it, so impossible values are refused: a region is only the container's own statement.
Layout, little-endian: src/multiprocess/multiprocess_memory_limit.h of Project-HAMi/HAMi-core, ABI 1.1 and 1.2, which
HAMi writes from 2.5 on.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from proto.devices import DeviceUUID

MAGIC = 19920718
MOST_DEVICES = 16
MOST_PROCESSES = 1024
_UUID_BYTES = 96
_LARGEST_BYTES = 1 << 50
"""A pebibyte, more than any GPU has."""
_LARGEST_PERCENT = 10_000
_LARGEST_SECONDS = 1 << 40
_MAJOR, _MINORS = 1, (1, 2)
_HEAD = 12
"""Bytes of magic number and version."""
_RECENT = range(-1, 3)

# Offsets in the file, and sizes
_SIZE = 2_008_952
_DEVICE_NUM, _UUIDS, _LIMITS, _SM_LIMITS, _PROCESSES = 56, 64, 1600, 1728, 1856
_PROCESS_SIZE = 1960
_PROCESS_COUNT, _UTILIZATION_SWITCH, _RECENT_KERNEL, _LAST_KERNEL = 2_008_896, 2_008_900, 2_008_904, 2_008_912
# Offsets in a process
_HOST_PID, _MEMORY, _UTILIZATION, _STATUS = 4, 8, 1160, 1928
_MEMORY_SIZE = 64
"""The bytes that describe one device's memory: context, module, data, offset, total, then reserved words."""
_UTILIZATION_SIZE = 48


ReadAt = Callable[[int, int], bytes]
"""`(offset, length)` → that many bytes, fewer where the file ends."""
HasEnded = Callable[[int], bool]
"""True if the process with this pid of the host has ended."""


class RegionError(Exception):
    """The file is not a readable shared region; one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionDevice:
    """One GPU of the container, summed over its live processes."""

    uuid: DeviceUUID
    limit_bytes: int
    """0 means no limit."""
    core_limit_percent: int
    context_bytes: int
    module_bytes: int
    buffer_bytes: int
    total_bytes: int
    utilization_percent: int
    """At most 100, although HAMi-core's own sum may be more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    version: str
    """`0`, `1.1` or `1.2`."""
    devices: tuple[RegionDevice, ...]
    """The devices by the container's own NVML index; GPUs whose UUID is not written yet are left out."""
    last_kernel_unix_seconds: int | None
    """The time of the last kernel launch; None before the first one, and in version 0, which lacks it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """Switches by which tasks wait or keep to their cores, and report that they compute.

    `recent_kernel`: 2 at each launch of a kernel, less later; -1 makes launches wait. `utilization_switch`: 1 holds
    tasks to their cores, 0 does not. HAMi-core begins with 2 and 1.
    """

    recent_kernel: int
    utilization_switch: int
    last_kernel_unix_seconds: int | None = None


def parse_switches(size: int, read_at: ReadAt) -> Switches:
    """Reads the switches of the region in a file of `size` bytes. Raises RegionError, also if the values are none of
    HAMi-core's.
    """
    _check_size(size)
    _version(_initialised(_exactly(read_at, 0, _HEAD)))
    tail = _exactly(read_at, _PROCESS_COUNT, _SIZE - _PROCESS_COUNT)
    (switch,) = struct.unpack_from("<i", tail, _UTILIZATION_SWITCH - _PROCESS_COUNT)
    (recent,) = struct.unpack_from("<i", tail, _RECENT_KERNEL - _PROCESS_COUNT)
    if switch not in (0, 1) or recent not in _RECENT:
        raise RegionError(f"its switches are {recent} and {switch}, which HAMi-core never writes")
    last = _last_kernel(tail)
    return Switches(recent_kernel=recent, utilization_switch=switch, last_kernel_unix_seconds=last)


def patches(before: Switches, after: Switches) -> Iterator[tuple[int, bytes]]:
    """Yields what to write at which offset of the file, 4 bytes each; what stays as it is is not written."""
    if after.utilization_switch != before.utilization_switch:
        yield _UTILIZATION_SWITCH, struct.pack("<i", after.utilization_switch)
    if after.recent_kernel != before.recent_kernel:
        yield _RECENT_KERNEL, struct.pack("<i", after.recent_kernel)


def parse_region(size: int, read_at: ReadAt, has_ended: HasEnded = lambda _: False) -> Region:
    """Returns the region in a file of `size` bytes; a few kilobytes of it are read. Raises RegionError.

    What a killed process had stays in the file until another process of the container starts or is refused memory.
    """
    _check_size(size)
    head = _initialised(_exactly(read_at, 0, _PROCESSES))
    version = _version(head)
    (device_count,) = struct.unpack_from("<Q", head, _DEVICE_NUM)
    tail = _exactly(read_at, _PROCESS_COUNT, _SIZE - _PROCESS_COUNT)
    (process_count,) = struct.unpack_from("<i", tail)
    _bounded("the number of GPUs", device_count, MOST_DEVICES)
    _bounded("the number of processes", process_count, MOST_PROCESSES)
    processes = _exactly(read_at, _PROCESSES, process_count * _PROCESS_SIZE)
    starts = range(0, len(processes), _PROCESS_SIZE)
    live = [start for start in starts if _is_live(processes, start, has_ended)]
    devices = (_device(head, processes, live, number) for number in range(device_count))
    return Region(
        version=version,
        devices=tuple(device for device in devices if device is not None),
        last_kernel_unix_seconds=_last_kernel(tail),
    )


def _check_size(size: int) -> None:
    """HAMi-core makes the file one byte longer than the struct."""
    if size not in (_SIZE, _SIZE + 1):
        raise RegionError(f"{size} bytes are not the size of a shared region, {_SIZE + 1}")


def _exactly(read_at: ReadAt, offset: int, length: int) -> bytes:
    content = read_at(offset, length)
    if len(content) != length:
        raise RegionError(f"cut short: {len(content)} of {length} bytes at offset {offset}")
    return content


def _initialised(head: bytes) -> bytes:
    (magic,) = struct.unpack_from("<i", head)
    if magic != MAGIC:
        raise RegionError("not initialised yet" if magic == 0 else f"the magic number is {magic} instead of {MAGIC}")
    return head


def _version(head: bytes) -> str:
    major, minor = struct.unpack_from("<II", head, 4)
    if major != _MAJOR or minor not in _MINORS:
        raise RegionError(f"version {major}.{minor} is not known; 1.1 and 1.2 are")
    return f"{major}.{minor}"


def _device(head: bytes, processes: bytes, live: Sequence[int], number: int) -> RegionDevice | None:
    uuid = _uuid(head, _UUIDS + number * _UUID_BYTES, number)
    if not uuid:
        return None
    (limit,) = struct.unpack_from("<Q", head, _LIMITS + 8 * number)
    (core_limit,) = struct.unpack_from("<Q", head, _SM_LIMITS + 8 * number)
    memory = [struct.unpack_from("<5Q", processes, at + _MEMORY + number * _MEMORY_SIZE) for at in live]
    context, module, buffers, _, total = (_total(f"GPU {number}: memory in use", column) for column in _columns(memory))
    busy = [struct.unpack_from("<3Q", processes, at + _UTILIZATION + number * _UTILIZATION_SIZE)[2] for at in live]
    return RegionDevice(
        uuid=DeviceUUID(uuid),
        limit_bytes=_bounded(f"GPU {number}: the memory limit", limit, _LARGEST_BYTES),
        core_limit_percent=_bounded(f"GPU {number}: the core limit", core_limit, _LARGEST_PERCENT),
        context_bytes=context,
        module_bytes=module,
        buffer_bytes=buffers,
        total_bytes=total,
        utilization_percent=min(sum(busy), 100),
    )


def _columns(rows: Sequence[tuple[int, ...]]) -> Iterable[tuple[int, ...]]:
    return zip(*rows, strict=True) if rows else ((),) * 5


def _total(what: str, values: Iterable[int]) -> int:
    return _bounded(what, sum(values), _LARGEST_BYTES)


def _uuid(head: bytes, at: int, number: int) -> str:
    raw = head[at : at + _UUID_BYTES].partition(b"\0")[0]
    try:
        uuid = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RegionError(f"GPU {number}: the UUID is not UTF-8 text") from error
    if not uuid.isprintable():
        raise RegionError(f"GPU {number}: the UUID has characters that cannot be printed")
    return uuid


def _is_live(processes: bytes, at: int, has_ended: HasEnded) -> bool:
    """A process that did not find its pid on the host has 0, and counts."""
    (status,) = struct.unpack_from("<i", processes, at + _STATUS)
    (pid,) = struct.unpack_from("<i", processes, at + _HOST_PID)
    return bool(status) and not (pid > 0 and has_ended(pid))


def _last_kernel(tail: bytes) -> int | None:
    (seconds,) = struct.unpack_from("<Q", tail, _LAST_KERNEL - _PROCESS_COUNT)
    return _bounded("the time of the last kernel", seconds, _LARGEST_SECONDS) or None


def _bounded(what: str, value: int, most: int) -> int:
    if not 0 <= value <= most:
        raise RegionError(f"{what} is {value}, which is beyond {most}")
    return value
