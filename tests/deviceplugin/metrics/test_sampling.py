import logging
from pathlib import Path

import pytest

from deviceplugin.metrics.sampling import Sampler
from deviceplugin.nvml.reader import Nvml
from tests.deviceplugin.regions import Slot, v1

UID = "2f7b1a5e-93c4-4d0e-8a61-0c5d9e7f1b23"


def test_without_a_driver_the_regions_are_still_read_and_a_bad_one_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, content in (("good", bytes(v1(["GPU-a"], [Slot()]))), ("bad", b"?")):
        (tmp_path / f"{UID}_{name}").mkdir()
        (tmp_path / f"{UID}_{name}" / "x.cache").write_bytes(content)
    sampler = Sampler(Nvml("/nowhere/libnvidia-ml.so.1"), str(tmp_path))
    with caplog.at_level(logging.WARNING):
        first, second = sampler.take(), sampler.take()
    assert first == second
    assert (first.gpus, list(first.regions), first.unreadable_regions) == ((), [(UID, "good")], 1)
    assert [record.message for record in caplog.records] == [
        f"region of container bad of pod {UID}: 1 bytes are the size of no known shared region (2008953 or 1197897)"
    ]
