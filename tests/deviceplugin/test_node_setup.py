import logging
from pathlib import Path

import pytest

from deviceplugin.container.cdi_files import SpecGenerator
from deviceplugin.container.edits import AllocationSettings
from deviceplugin.gpus import Gpus, Inventory
from deviceplugin.news import News
from deviceplugin.node_setup import set_up_node
from deviceplugin.nvml.thread import NvmlThread
from deviceplugin.settings import AgentSettings


async def warned(hook_path: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    news = News()
    gpus = Gpus(Inventory, NvmlThread(), news, AgentSettings(node_name="n"))
    with caplog.at_level(logging.INFO, logger="deviceplugin"):
        await set_up_node(gpus, news, AllocationSettings(), SpecGenerator(), hook_path=str(hook_path))
    return [record.getMessage() for record in caplog.records]


async def test_a_node_without_hami_core_is_set_up_and_says_in_one_line_what_is_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert await warned(tmp_path, caplog) == [
        f"HAMi-core is not installed below {tmp_path}/vgpu: containers are given their GPUs, but nothing holds them to "
        "their share of memory and cores; install it with `topogpu-device-plugin install-hook`"
    ]
