"""The daemon as a process labels its Node, unless GPU feature discovery does."""

import json
from pathlib import Path
from typing import Any

import pytest

from proto.annotations.keys import NODE_LABELS
from simulation.nvml.machine_file import CallFails
from tests.deviceplugin.daemon_rig import DaemonRig, daemon
from tests.deviceplugin.gpus import NODE
from tests.polling import until

pytestmark = pytest.mark.needs_compiler
GOLDEN = json.loads((Path(__file__).parents[1] / "data/feature-labels.json").read_text())["4x-a100-pcie-80g-bridged"]
ON = ("--features", "gpu-labels", "--device-split-count", "4", "--read-seconds", "0.05")
GFD = {"nvidia.com/gfd.timestamp": "1724632719", "nvidia.com/gpu.count": "9"}


def labels(node: DaemonRig) -> dict[str, str]:
    found: Any = node.server.store.get("nodes", "", NODE)
    return {name: value for name, value in found["metadata"].get("labels", {}).items() if name.startswith("nvidia")}


def write(node: DaemonRig, **changes: str | None) -> None:
    node.server.patch("nodes", NODE, {"metadata": {"labels": changes}})


async def test_the_node_is_labelled_by_one_write_and_only_when_asked() -> None:
    async with daemon(*ON) as node:
        await until(lambda: labels(node) == GOLDEN)
        before = node.writes()
        node.machine(CallFails(gpu=0, call="nvmlDeviceGetCudaComputeCapability", error="UNKNOWN"))
        write(node, **{"example.com/rack": "7"})
        await until(node.is_ready)
        assert (labels(node), node.writes(), node.problems()) == (GOLDEN, before, [])
    async with daemon() as node:
        assert (labels(node), NODE_LABELS in node.annotations()) == ({}, False)


async def test_what_somebody_takes_away_is_written_again() -> None:
    async with daemon(*ON) as node:
        await until(lambda: labels(node) == GOLDEN)
        write(node, **{"nvidia.com/gpu.product": None})
        await until(lambda: labels(node) == GOLDEN)


async def test_gpu_feature_discovery_that_was_there_first_or_comes_later_has_the_labels_to_itself() -> None:
    def before(server: Any, _: Path) -> None:
        server.patch("nodes", NODE, {"metadata": {"labels": GFD}})

    async with daemon(*ON, before=before) as node:
        await until(lambda: bool(node.events("FeatureLabelsNotOurs")))
        assert labels(node) == GFD
        write(node, **dict.fromkeys(GFD))
        await until(lambda: labels(node) == GOLDEN)
        write(node, **GFD)
        await until(lambda: labels(node) == GFD)
        assert NODE_LABELS not in node.annotations()
        assert "nvidia.com/gpu.count" in node.events("FeatureLabelsNotOurs")[0]


async def test_switched_off_the_labels_of_the_life_before_go() -> None:
    async with daemon(*ON) as node:
        await until(lambda: labels(node) == GOLDEN)
        await node.kill()
        node.options = tuple(option for option in node.options if option not in ("--features", "gpu-labels"))
        await node.start()
        await until(lambda: labels(node) == {} and NODE_LABELS not in node.annotations())
