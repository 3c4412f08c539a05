"""The real command after the real daemon, over the file system, kubelet's stand-in and the embedded API server."""

import asyncio
import hashlib
import importlib
import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from deviceplugin.cli import main
from deviceplugin.container.hami_core_install import install_hami_core
from deviceplugin.records.memory import MEMORY_FOLDER
from proto.annotations.keys import DEVICE_CORDON, NODE_LOCK, NODE_LOCK_UID
from proto.annotations.node_limits import NodeLimits
from proto.annotations.node_lock import encode_lock_uid
from simulation.apiserver import EmbeddedApiServer
from tests.deviceplugin.daemon_rig import DaemonRig, daemon
from tests.deviceplugin.gpus import NODE
from tests.polling import until

pytestmark = pytest.mark.needs_compiler
LIBRARY = Path(importlib.import_module("msgspec._core").__file__ or "")
OTHERS = {DEVICE_CORDON: "GPU-x", "example.com/rack": "7"}
_KUBELETS = ("kubelet", "machine", "sys", "pod-resources", "cgroup")
LOCK = "2030-01-01T00:00:00Z,ml,train"
SLOT_SPEC = "topogpu.io-slot.json"


@dataclass
class Life:
    """A node that others have written on too. `host` is where its root is mounted."""

    node: DaemonRig
    host: Path
    before: dict[str, str] = field(default_factory=dict)

    async def uninstall(self, *options: str) -> tuple[int, list[str]]:
        """Exit status and all it says, with the daemon's own options."""
        words = ["uninstall-node", *self.node.options, "--host-root", str(self.host), *options]
        result = await asyncio.to_thread(CliRunner().invoke, main, words)
        return result.exit_code, result.output.splitlines()

    async def stop(self) -> None:
        self.node.process.terminate()
        assert await self.node.ended() == 0

    def now(self) -> dict[str, str]:
        return state(self.node.server, self.node.kubelet.root)


def state(server: EmbeddedApiServer, root: Path) -> dict[str, str]:
    """Every file that is not kubelet's, and the Node's annotations and labels."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if not any(part.startswith(_KUBELETS) for part in path.relative_to(root).parts):
            # A running daemon writes these again when its pods change.
            changes = path.parent.name == MEMORY_FOLDER or path.name == SLOT_SPEC
            found[name] = os.readlink(path) if path.is_symlink() else "of the pods" if changes else digest(path)
    node: Any = server.store.get("nodes", "", NODE)
    kept = {key: node["metadata"].get(key, {}) for key in ("annotations", "labels")}
    return {**found, "the Node": json.dumps(kept, sort_keys=True)}


def digest(path: Path) -> str:
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return "folder" if path.is_dir() else "socket"


@pytest.fixture
async def life() -> AsyncIterator[Life]:
    taken: dict[str, str] = {}

    def before(server: EmbeddedApiServer, root: Path) -> None:
        server.patch("nodes", NODE, {"metadata": {"annotations": OTHERS}})
        (root / "cdi").mkdir()
        (root / "hook").mkdir()
        (root / "cdi/nvidia.yaml").write_text("cdiVersion: 0.6.0\nkind: nvidia.com/gpu\ndevices: []\n")
        # The host's root as a container sees it: the machine's own lock folder is not for tests to remove.
        host_tmp = root / "host" / root.parent.relative_to("/")
        host_tmp.mkdir(parents=True)
        (host_tmp / root.name).symlink_to(root)
        taken.update(state(server, root))
        (host_tmp / "vgpulock").mkdir()
        (root / "lib").mkdir()

    slots = "containerd://2.4.2"
    async with daemon("--features", "gpu-labels", runtime_version=slots, before=before, hami_core=False) as node:
        root = node.kubelet.root
        (root / "lib/libvgpu.so").write_bytes(LIBRARY.read_bytes())
        install_hami_core(root / "lib", root / "hook", machine=os.uname().machine)
        (root / "lib/libvgpu.so").unlink()
        (root / "lib").rmdir()
        yield Life(node, root / "host", taken)


async def used(life: Life) -> None:
    """Two pods of which one is still there, and a lock that a scheduler of ours left behind."""
    node = life.node
    node.bind("train", 0)
    node.bind("done", 1)
    await node.runs("train", "done")
    node.server.delete("pods", "done", namespace="default")
    lock = {NODE_LOCK: LOCK, NODE_LOCK_UID: encode_lock_uid(LOCK, "uid-1")}
    node.server.patch("nodes", NODE, {"metadata": {"annotations": lock}})
    await until(lambda: {"nvidia.com/gpu.product", NodeLimits.HAMI_CORE} <= set(life.now()["the Node"].split('"')))
    written = life.now()
    assert {"containers", "ld.so.preload", "libvgpu.so"} <= {name.split("/")[-1] for name in written}
    assert f"cdi/{SLOT_SPEC}" in written


async def test_after_a_full_life_the_node_is_as_it_was_before(life: Life) -> None:
    await used(life)
    life.node.server.delete("pods", "train", namespace="default")
    await life.stop()
    wrote = life.now()
    status, would = await life.uninstall("--dry-run")
    assert (status, life.now()) == (0, wrote)
    status, did = await life.uninstall()
    assert (status, life.now()) == (0, life.before)
    assert did == [line.replace("Would remove", "Removed") for line in would]
    assert await life.uninstall() == (0, ["Nothing of TopoGPU is left."])


async def test_pods_with_gpus_and_a_running_daemon_are_in_the_way(life: Life) -> None:
    await used(life)
    wrote = life.now()
    status, told = await life.uninstall()
    assert (status, life.now()) == (1, wrote)
    assert told[0].startswith("Error: Pods on node node-1 still have GPUs: default/train. ")
    assert told[1].startswith("A device plugin still serves ")
    assert told[2].startswith("Nothing was removed; ")
    await life.node.kill()
    status, told = await life.uninstall("--force")
    assert (status, life.now()) == (0, life.before)


async def test_without_an_api_server_only_force_removes_and_the_annotations_are_told(life: Life) -> None:
    await life.stop()
    config = life.node.kubelet.root / "machine.kubeconfig"
    config.write_text(
        (life.node.kubelet.root / "kubeconfig").read_text().replace(life.node.server.url, "http://[::1]:1")
    )
    without = ("--kubeconfig", str(config))
    status, told = await life.uninstall(*without)
    assert (status, told[-1]) == (1, "Nothing was removed; --force removes whatever it can reach.")
    status, told = await life.uninstall("--force", *without)
    assert (status, told[-1].startswith("Error: Not all of ours could be removed from node node-1: ")) == (
        1,
        True,
    )
    status, told = await life.uninstall()
    assert (status, life.now()) == (0, life.before)


async def test_a_node_that_left_the_cluster_and_half_an_installation_are_no_mistakes(life: Life) -> None:
    await life.stop()
    (life.node.kubelet.root / "hook/vgpu/ld.so.preload").unlink()
    await life.node.kubelet.stop()
    life.node.server.delete("nodes", NODE)
    status, told = await life.uninstall()
    assert (status, told[0]) == (0, "There is no node node-1 in the cluster.")
    assert not (life.node.kubelet.root / "hook/vgpu").exists()
