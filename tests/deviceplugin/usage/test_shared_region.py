import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.usage.shared_region import (
    Region,
    RegionDevice,
    RegionError,
    parse_region,
)
from proto.devices import DeviceUUID
from tests.deviceplugin.regions import V1_BYTES, Slot, v1

A, B = DeviceUUID("GPU-aaaaaaaa-0000-0000-0000-000000000000"), DeviceUUID("GPU-bbbbbbbb-0000-0000-0000-000000000000")
TWO_LIVE_ONE_FREE = [
    Slot(memory={0: (1, 2, 3, 4, 10), 1: (0, 0, 5, 0, 5)}, sm={0: 20}),
    Slot(status=0, memory={0: (100, 100, 100, 100, 400)}, sm={0: 99}),
    Slot(status=2, memory={0: (10, 20, 30, 40, 100)}, sm={0: 5, 1: 7}),
]
DEVICES = (
    RegionDevice(
        uuid=A,
        limit_bytes=1 << 30,
        core_limit_percent=30,
        context_bytes=11,
        module_bytes=22,
        buffer_bytes=33,
        total_bytes=110,
        utilization_percent=25,
    ),
    RegionDevice(
        uuid=B,
        limit_bytes=1 << 30,
        core_limit_percent=30,
        context_bytes=0,
        module_bytes=0,
        buffer_bytes=5,
        total_bytes=5,
        utilization_percent=7,
    ),
)


def parse(content: bytes | bytearray) -> Region:
    return parse_region(len(content), lambda offset, length: bytes(content[offset : offset + length]))


def put(content: bytearray, form: str, offset: int, *values: int) -> bytearray:
    struct.pack_into(form, content, offset, *values)
    return content


@pytest.mark.parametrize("minor", [1, 2])
def test_a_region_sums_its_running_and_suspended_processes(minor: int) -> None:
    content = v1([A, B], TWO_LIVE_ONE_FREE, minor=minor, last_kernel=1_900_000_000)
    assert parse(content) == Region(version=f"1.{minor}", devices=DEVICES, last_kernel_unix_seconds=1_900_000_000)


def test_a_gpu_whose_uuid_is_not_written_yet_is_left_out() -> None:
    devices = parse(v1(["", B], TWO_LIVE_ONE_FREE)).devices
    assert devices == DEVICES[1:]


def test_a_region_without_processes_and_kernels_is_all_zero() -> None:
    region = parse(v1([A], []))
    assert region.last_kernel_unix_seconds is None
    assert (region.devices[0].total_bytes, region.devices[0].utilization_percent) == (0, 0)


def test_processes_that_have_ended_do_not_count() -> None:
    """One that does not know its pid does."""
    slots = [
        Slot(memory={0: (0, 0, size, 0, size)}, sm={0: size}, host_pid=pid) for size, pid in ((1, 7), (2, 8), (4, 0))
    ]
    content = v1([A], slots)
    (device,) = parse_region(
        len(content), lambda at, size: bytes(content[at : at + size]), lambda pid: pid == 7
    ).devices
    assert (device.buffer_bytes, device.total_bytes, device.utilization_percent) == (6, 6, 6)


@pytest.mark.parametrize("percent", [101, 4536, 2**64 - 1])
def test_a_gpu_is_never_busier_than_all_the_time(percent: int) -> None:
    """HAMi-core of 2.5 adds up more where a container has several GPUs."""
    assert parse(v1([A], [Slot(sm={0: percent})])).devices[0].utilization_percent == 100


def test_only_the_slots_in_use_are_read() -> None:
    content = v1([A], [Slot()])
    read: list[int] = []

    def read_at(offset: int, length: int) -> bytes:
        read.append(length)
        return bytes(content[offset : offset + length])

    parse_region(len(content), read_at)
    assert sum(read) < 4096


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "0 bytes are not the size of a shared region"),
        (bytes(4096), "4096 bytes are not the size of a shared region"),
        (bytes(V1_BYTES), "not initialised yet"),
        (put(v1([A], []), "<i", 0, 7), "the magic number is 7"),
        (put(v1([A], []), "<I", 4, 2), "version 2.2 is not known"),
        (put(v1([A], []), "<I", 8, 3), "version 1.3 is not known"),
        (put(v1([A], []), "<Q", 56, 17), "the number of GPUs is 17"),
        (put(v1([A], []), "<Q", 56, 2**64 - 1), "the number of GPUs is"),
        (put(v1([A], []), "<i", 2_008_896, 1025), "the number of processes is 1025"),
        (put(v1([A], []), "<i", 2_008_896, -1), "the number of processes is -1"),
        (put(v1([A], []), "<B", 64, 0xFF), "the UUID is not UTF-8 text"),
        (put(v1([A], []), "<B", 65, 0x1B), "characters that cannot be printed"),
        (put(v1([A], []), "<Q", 1600, 2**63), "the memory limit is"),
        (put(v1([A], []), "<Q", 1728, 10_001), "the core limit is"),
        (v1([A], [Slot(memory={0: (0, 0, 0, 0, 2**63)})]), "memory in use is"),
        (put(v1([A], []), "<Q", 2_008_912, 2**62), "the time of the last kernel is"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(content: bytes, problem: str) -> None:
    with pytest.raises(RegionError, match=problem):
        parse(content)


def test_a_file_cut_short_while_it_is_read_is_refused() -> None:
    with pytest.raises(RegionError, match="cut short: 0 of 1856 bytes"):
        parse_region(V1_BYTES, lambda offset, length: b"")


@given(data=st.data(), size=st.sampled_from([V1_BYTES, V1_BYTES - 1]))
def test_no_bytes_raise_anything_but_a_region_error(data: st.DataObject, size: int) -> None:
    """Every read may answer anything, and less than asked."""

    def read_at(offset: int, length: int) -> bytes:
        filler = data.draw(st.binary(max_size=64)) or b"\0"
        start = struct.pack("<iII", 19920718, 1, 2) if offset == 0 and data.draw(st.booleans()) else b""
        return (start + filler * (length // len(filler) + 1))[: data.draw(st.sampled_from([length, length // 2]))]

    try:
        region = parse_region(size, read_at)
    except RegionError:
        return
    assert len(region.devices) <= 16


@given(at=st.integers(0, 1850), junk=st.binary(min_size=1, max_size=16))
def test_a_region_with_a_few_bytes_changed_is_read_or_refused(at: int, junk: bytes) -> None:
    content = v1([A, B], TWO_LIVE_ONE_FREE)
    content[at : at + len(junk)] = junk
    try:
        parse(content)
    except RegionError:
        return
