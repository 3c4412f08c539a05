import asyncio
import logging
import threading
from pathlib import Path

import pytest

from deviceplugin.metrics.sampling import Sampler
from deviceplugin.nvml.reader import Nvml
from deviceplugin.own_threads import OwnThreads
from deviceplugin.region_files import RegionFiles, RegionReader
from tests.deviceplugin.regions import Slot, v1
from tests.polling import until

UID = "2f7b1a5e-93c4-4d0e-8a61-0c5d9e7f1b23"


async def test_without_a_driver_the_regions_are_still_read_and_a_bad_one_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, content in (("good", bytes(v1(["GPU-a"], [Slot()]))), ("bad", b"?")):
        (tmp_path / f"{UID}_{name}").mkdir()
        (tmp_path / f"{UID}_{name}" / "x.cache").write_bytes(content)
    sampler = Sampler(Nvml("/nowhere/libnvidia-ml.so.1"), RegionReader(str(tmp_path)).read, OwnThreads("nvml"))
    with caplog.at_level(logging.WARNING):
        first, second = await sampler.take(), await sampler.take()
    assert first == second
    assert (first.gpus, list(first.regions), first.unreadable_regions) == ((), [(UID, "good")], 1)
    assert [record.message for record in caplog.records] == [
        f"region of container bad of pod {UID}: 1 bytes are not the size of a shared region, 2008953"
    ]


async def test_a_disk_that_hangs_leaves_the_driver_to_the_health_checks() -> None:
    hangs, reached = threading.Event(), threading.Event()

    def read() -> RegionFiles:
        reached.set()
        hangs.wait()
        return RegionFiles()

    thread = OwnThreads("nvml")
    sampler = Sampler(Nvml("/nowhere/libnvidia-ml.so.1"), read, thread)
    taking = asyncio.create_task(sampler.take())
    await until(reached.is_set)
    assert await thread.call(lambda: "well") == "well"
    hangs.set()
    assert (await taking).gpus == ()
