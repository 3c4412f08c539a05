"""Since when a container does not use its GPU, from what each reading of the driver shows."""

from deviceplugin.usage.last_use import LastUse, with_sole_holders
from deviceplugin.usage.used import GpuSample, Usage, VgpuUsage
from proto.devices import DeviceUUID

A = DeviceUUID("GPU-a")
WALL = 2_000_000_000.0


def row(pod: str = "train", *, peak: int | None = 0, launched: int | None = None, busy: int | None = 0) -> VgpuUsage:
    return VgpuUsage(
        namespace="ml",
        pod=pod,
        container="main",
        position=0,
        uuid=A,
        memory_limit_bytes=0,
        core_limit_percent=0,
        memory_used_bytes=None,
        busy_percent=busy,
        pod_uid=f"uid-{pod}",
        peak_percent=peak,
        last_kernel_unix_seconds=launched,
    )


def seen(*readings: tuple[float, VgpuUsage], at: float) -> int | None:
    last = LastUse()
    for now, each in readings:
        last.see(Usage(vgpus=(each,)), now, wall=WALL + now)
    return last.unused_seconds(readings[-1][1], at)


def test_time_without_use_counts_from_the_last_reading_that_showed_some() -> None:
    assert seen((100, row()), (200, row(peak=3)), (300, row()), at=460) == 260


def test_time_without_use_counts_from_the_first_look_where_none_was_seen() -> None:
    assert seen((100, row()), (200, row()), at=250) == 150


def test_a_kernel_that_hami_core_has_seen_is_use_although_the_driver_shows_none() -> None:
    assert seen((100, row(launched=int(WALL) + 90)), (200, row(launched=int(WALL) + 190)), at=200) == 10
    assert seen((100, row(launched=0)), (200, row(launched=0)), at=200) == 100


def test_a_wall_clock_that_is_set_back_makes_no_use_in_the_future() -> None:
    assert seen((100, row(launched=int(WALL) + 9_999)), at=100) == 0


def test_use_is_unknown_where_nothing_shows_it_and_is_not_handed_to_a_pod_of_the_same_name() -> None:
    assert seen((100, row(peak=None, busy=None)), at=200) is None
    last = LastUse()
    last.see(Usage(vgpus=(row("a"),)), 0, wall=WALL)
    last.see(Usage(vgpus=(row("b"),)), 500, wall=WALL)
    assert last.unused_seconds(row("b"), 600) == 100


def test_who_holds_a_gpu_alone_has_its_activity_where_the_driver_lists_no_processes() -> None:
    gpus = [GpuSample(uuid=A, busy_percent=40)]
    unknown = row(peak=None, busy=None)
    (alone,) = with_sole_holders(Usage(vgpus=(unknown,)), gpus).vgpus
    assert (alone.busy_percent, alone.peak_percent) == (40, 40)
    two = Usage(vgpus=(unknown, row("other", peak=None, busy=None)))
    assert with_sole_holders(two, gpus) == two
