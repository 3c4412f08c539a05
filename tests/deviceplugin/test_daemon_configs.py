"""The daemon as a process has the configuration that its Node's label names, and begins again when that changes."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from program.settings.options import CONFIG_LABEL
from simulation.apiserver.faults import Fault
from tests.deviceplugin.daemon_rig import DaemonRig, daemon
from tests.deviceplugin.gpus import NODE
from tests.polling import LONGEST_SECONDS, until

pytestmark = pytest.mark.needs_compiler


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    folder = tmp_path / "configs"
    folder.mkdir()
    (folder / "shared.yaml").write_text("device_split_count: 4\n")
    (folder / "whole.yaml").write_text("device_split_count: 1\n")
    (folder / "broken.yaml").write_text("device_split_count: many\n")
    return folder


def label(name: str | None) -> Any:
    return lambda server, _: server.patch("nodes", NODE, {"metadata": {"labels": {CONFIG_LABEL: name}}})


def relabel(node: DaemonRig, name: str | None) -> None:
    label(name)(node.server, None)


def replicas(node: DaemonRig) -> set[int]:
    return {gpu.replicas for gpu in node.gpus()}


async def test_a_node_has_the_configuration_that_its_label_names_and_others_the_default_one(configs: Path) -> None:
    async with daemon("--configs", str(configs), before=label("shared")) as node:
        assert replicas(node) == {4}
    async with daemon("--configs", str(configs), "--default-config", "whole") as node:
        assert replicas(node) == {1}
    async with daemon("--configs", str(configs)) as node:
        assert replicas(node) == {10}


async def test_another_label_ends_the_daemon_to_begin_again_and_running_pods_stay(configs: Path) -> None:
    async with daemon("--configs", str(configs), before=label("shared")) as node:
        node.bind("train", 0)
        await node.runs("train")
        relabel(node, "whole")
        assert await asyncio.wait_for(node.ended(), LONGEST_SECONDS) == 0
        assert node.said("ending, to restart with configuration 'whole', as node node-1 requires")
        await node.start()
        await until(lambda: replicas(node) == {1})
        assert node.status("train")["phase"] == "Running"
        assert node.problems() == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "wholes",
            "there is no configuration 'wholes' in {folder}; did you mean whole? There are: broken, shared, whole",
        ),
        ("broken", "{folder}/broken.yaml: device_split_count is 'many'; expected a whole number from 1 to 1000"),
    ],
)
async def test_what_cannot_be_used_leaves_the_old_one_in_use_also_over_a_restart(
    configs: Path, name: str, words: str
) -> None:
    async with daemon("--configs", str(configs), before=label("shared")) as node:
        relabel(node, name)
        await until(lambda: bool(node.events("ConfigurationNotUsed")))
        [told] = node.events("ConfigurationNotUsed")
        assert told == f"configuration 'shared' remains in use: {words.format(folder=configs)}"
        await node.kill()
        await node.start()
        await until(lambda: node.said("registered nvidia.com/gpu with kubelet"))
        assert replicas(node) == {4}


async def test_without_the_api_server_the_configuration_in_use_last_serves(configs: Path) -> None:
    async with daemon("--configs", str(configs), before=label("whole")) as node:
        await node.kill()
        node.server.faults.add(Fault(status=503))
        await node.start()
        await until(lambda: node.said("cannot read which configuration node node-1 must have"))
        await until(lambda: sum("metrics are served" in line for line in node.log) == 2)
        node.server.faults.clear()
        await until(lambda: sum("registered nvidia.com/gpu" in line for line in node.log) == 2)
        assert replicas(node) == {1}


async def test_a_node_whose_first_label_cannot_be_used_has_the_default_configuration_and_says_so(configs: Path) -> None:
    async with daemon("--configs", str(configs), "--default-config", "whole", before=label("broken")) as node:
        await until(lambda: bool(node.events("ConfigurationNotUsed")))
        assert replicas(node) == {1}
