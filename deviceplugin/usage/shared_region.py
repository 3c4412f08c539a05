"""HAMi-core's shared region: the file in which the processes of one container keep their GPU memory and limits.

The tenant can write every byte of it, so impossible values are refused: a region is only the container's own statement.
Layout, little-endian: src/multiprocess/multiprocess_memory_limit.h of Project-HAMi/HAMi-core, ABI 1.1 and 1.2, and the
older one without version, called v0 here.
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


ReadAt = Callable[[int, int], bytes]
"""`(offset, length)` → that many bytes, fewer where the file ends."""
HasEnded = Callable[[int], bool]
"""True if the process with this pid of the host has ended."""


class RegionError(Exception):
    """The file is not a readable shared region; one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    name: str
    size: int
    device_num: int
    uuids: int
    limits: int
    sm_limits: int
    processes: int
    process_size: int
    memory_size: int
    """The bytes that describe one device's memory in a process: context, module, data, offset, total, then reserved
    words.
    """
    utilization: int
    utilization_size: int
    status: int
    process_count: int
    utilization_switch: int
    recent_kernel: int
    last_kernel: int | None


_HOST_PID, _MEMORY = 4, 8
"""Offsets of a process's pid on the host, and of its memory by device, in both layouts."""

_V1 = _Layout(
    name="1",
    size=2_008_952,
    device_num=56,
    uuids=64,
    limits=1600,
    sm_limits=1728,
    processes=1856,
    process_size=1960,
    memory_size=64,
    utilization=1160,
    utilization_size=48,
    status=1928,
    process_count=2_008_896,
    utilization_switch=2_008_900,
    recent_kernel=2_008_904,
    last_kernel=2_008_912,
)
_V0 = _Layout(
    name="0",
    size=1_197_896,
    device_num=48,
    uuids=56,
    limits=1592,
    sm_limits=1720,
    processes=1848,
    process_size=1168,
    memory_size=40,
    utilization=776,
    utilization_size=24,
    status=1160,
    process_count=1_197_880,
    utilization_switch=1_197_884,
    recent_kernel=1_197_888,
    last_kernel=None,
)


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
    layout = _layout(size)
    _version(layout, _initialised(_exactly(read_at, 0, _HEAD)))
    tail = _exactly(read_at, layout.process_count, layout.size - layout.process_count)
    (switch,) = struct.unpack_from("<i", tail, layout.utilization_switch - layout.process_count)
    (recent,) = struct.unpack_from("<i", tail, layout.recent_kernel - layout.process_count)
    if switch not in (0, 1) or recent not in _RECENT:
        raise RegionError(f"its switches are {recent} and {switch}, which HAMi-core never writes")
    last = _last_kernel(layout, tail)
    return Switches(recent_kernel=recent, utilization_switch=switch, last_kernel_unix_seconds=last)


def patches(size: int, before: Switches, after: Switches) -> Iterator[tuple[int, bytes]]:
    """Yields what to write at which offset of the file, 4 bytes each; what stays as it is is not written."""
    layout = _layout(size)
    if after.utilization_switch != before.utilization_switch:
        yield layout.utilization_switch, struct.pack("<i", after.utilization_switch)
    if after.recent_kernel != before.recent_kernel:
        yield layout.recent_kernel, struct.pack("<i", after.recent_kernel)


def parse_region(size: int, read_at: ReadAt, has_ended: HasEnded = lambda _: False) -> Region:
    """Returns the region in a file of `size` bytes; a few kilobytes of it are read. Raises RegionError.

    What a killed process had stays in the file until another process of the container starts or is refused memory.
    """
    layout = _layout(size)
    head = _initialised(_exactly(read_at, 0, layout.processes))
    version = _version(layout, head)
    (device_count,) = struct.unpack_from("<Q", head, layout.device_num)
    tail = _exactly(read_at, layout.process_count, layout.size - layout.process_count)
    (process_count,) = struct.unpack_from("<i", tail)
    _bounded("the number of GPUs", device_count, MOST_DEVICES)
    _bounded("the number of processes", process_count, MOST_PROCESSES)
    slots = _exactly(read_at, layout.processes, process_count * layout.process_size)
    starts = range(0, len(slots), layout.process_size)
    live = [start for start in starts if _is_live(layout, slots, start, has_ended)]
    devices = (_device(layout, head, slots, live, number) for number in range(device_count))
    return Region(
        version=version,
        devices=tuple(device for device in devices if device is not None),
        last_kernel_unix_seconds=_last_kernel(layout, tail),
    )


def _layout(size: int) -> _Layout:
    """HAMi-core makes the file one byte longer than the struct."""
    for layout in (_V1, _V0):
        if size in (layout.size, layout.size + 1):
            return layout
    raise RegionError(f"{size} bytes are the size of no known shared region ({_V1.size + 1} or {_V0.size + 1})")


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


def _version(layout: _Layout, head: bytes) -> str:
    if layout is _V0:
        return layout.name
    major, minor = struct.unpack_from("<II", head, 4)
    if major != _MAJOR or minor not in _MINORS:
        raise RegionError(f"version {major}.{minor} is not known; 1.1 and 1.2 are")
    return f"{major}.{minor}"


def _device(layout: _Layout, head: bytes, slots: bytes, live: Sequence[int], number: int) -> RegionDevice | None:
    uuid = _uuid(head, layout.uuids + number * _UUID_BYTES, number)
    if not uuid:
        return None
    (limit,) = struct.unpack_from("<Q", head, layout.limits + 8 * number)
    (core_limit,) = struct.unpack_from("<Q", head, layout.sm_limits + 8 * number)
    memory = [struct.unpack_from("<5Q", slots, at + _MEMORY + number * layout.memory_size) for at in live]
    context, module, buffers, _, total = (_total(f"GPU {number}: memory in use", column) for column in _columns(memory))
    busy = [
        struct.unpack_from("<3Q", slots, at + layout.utilization + number * layout.utilization_size)[2] for at in live
    ]
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


def _is_live(layout: _Layout, slots: bytes, at: int, has_ended: HasEnded) -> bool:
    """A process that did not find its pid on the host has 0, and counts."""
    (status,) = struct.unpack_from("<i", slots, at + layout.status)
    (pid,) = struct.unpack_from("<i", slots, at + _HOST_PID)
    return bool(status) and not (pid > 0 and has_ended(pid))


def _last_kernel(layout: _Layout, tail: bytes) -> int | None:
    if layout.last_kernel is None:
        return None
    (seconds,) = struct.unpack_from("<Q", tail, layout.last_kernel - layout.process_count)
    return _bounded("the time of the last kernel", seconds, _LARGEST_SECONDS) or None


def _bounded(what: str, value: int, most: int) -> int:
    if not 0 <= value <= most:
        raise RegionError(f"{what} is {value}, which is beyond {most}")
    return value
