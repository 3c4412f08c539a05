"""`topogpu-device-plugin allocations` beside a running daemon, and where nothing runs."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from deviceplugin.cli import listing, main
from deviceplugin.slots.slot import SPEC_FILE
from proto.annotations.keys import DEVICES_ALLOCATED
from proto.annotations.pod_devices import encode_pod_devices
from tests.deviceplugin.daemon_rig import DaemonRig, daemon
from tests.deviceplugin.gpus import share
from tests.polling import LONGEST_SECONDS


@pytest.fixture(autouse=True)
def slow_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server and kubelet run in this process; on a busy machine each answer may take seconds."""
    monkeypatch.setattr(listing, "ANSWER_SECONDS", LONGEST_SECONDS)


async def listed(node: DaemonRig, *more: str) -> tuple[int, str]:
    """Exit status and output, with the daemon's own options."""
    arguments = ["allocations", *node.options, *more]
    result = await asyncio.to_thread(CliRunner().invoke, main, arguments)
    return result.exit_code, result.output


@pytest.mark.needs_compiler
async def test_slots_agree_until_a_spec_or_an_annotation_is_tampered_with() -> None:
    async with daemon(runtime_version="containerd://2.4.2") as node:
        gpu, other = (device.uuid for device in node.gpus()[:2])
        node.bind_shares("p", ((share(gpu, 9000, 10),), (share(gpu, 3000, 30),), (share(other, 500, 5),)), init=1)
        node.bind("q", 2)
        await node.runs("p", "q")
        status, text = await listed(node, "--output", "json")
        answer: Any = json.loads(text)
        rows = {(row["pod"], row["container"]): row for row in answer["allocations"]}
        assert (status, answer["problems"], list(rows)) == (0, [], [("p", "c0"), ("p", "c1"), ("p", "c2"), ("q", "c0")])
        assert all(row["agrees"] for row in rows.values())
        assert rows["p", "c1"]["gpus"] == [{"uuid": gpu, "memoryMiB": 3000, "cores": 30}]
        assert {name: verdict["is"] for name, verdict in rows["p", "c0"]["agreement"].items()} == {
            "kubelet": "agrees",
            "pod-resources": "silent",
            "annotation": "agrees",
            "CDI spec": "agrees",
        }
        assert len({row["slot"] for row in rows.values()}) == 4
        spec = node.cdi / SPEC_FILE
        untouched = spec.read_text()
        spec.write_text(untouched.replace("MEMORY_LIMIT_0=3000m", "MEMORY_LIMIT_0=80000m"))
        status, text = await listed(node)
        assert (status, "✗ pod default/q, container c0: CDI spec: limits to 80000 MiB and 30 %." in text) == (1, True)
        spec.write_text(untouched)
        assert (await listed(node))[0] == 0
        larger = encode_pod_devices(((share(node.gpus()[3].uuid),),))
        node.server.patch("pods", "q", {"metadata": {"annotations": {DEVICES_ALLOCATED: larger}}}, namespace="default")
        status, text = await listed(node)
        assert (status, f"container c0: CDI spec: gives {node.gpus()[2].uuid}." in text) == (1, True)


@pytest.mark.needs_compiler
async def test_a_node_without_slots_has_no_column_for_them() -> None:
    async with daemon() as node:
        node.bind("p", 2)
        await node.runs("p")
        status, text = await listed(node)
        assert status == 0, text
        assert text.splitlines()[0].split() == [
            *("Pod", "Container", "GPU", "Limits", "Agree", "kubelet", "pod-resources", "annotation")
        ]
        assert "c0         2  A100 80GB PCIe  3000 MiB, 30 %  yes" in text
        assert node.gpus()[2].uuid not in text
        assert node.gpus()[2].uuid in (await listed(node, "-o", "wide"))[1]


def test_where_nothing_can_be_read_every_source_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("clusters: [")
    options = ["--node-name", "n", "--kubelet-root", str(tmp_path), "--kubeconfig", str(tmp_path / "config")]
    result = CliRunner().invoke(main, ["allocations", *options, "--cdi-directory", str(tmp_path / "cdi")])
    lines = result.output.splitlines()
    assert result.exit_code == 1
    assert [line.partition(" cannot be ")[0] for line in lines] == [
        "! The decisions for the pods of node n",
        "! Kubelet's pod-resources",
        f"! Kubelet's checkpoint {tmp_path}/device-plugins/kubelet_internal_checkpoint",
    ]
    assert all(line.endswith(".") for line in lines)
