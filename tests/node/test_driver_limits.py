"""The hook of the driver's limits, run by the real runc on control groups of version 2, against our daemon."""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from msgspec.structs import replace

from deviceplugin.slots.slot import SPEC_FILE
from proto.devices import DeviceShare
from tests.cluster.binaries import NoBinaries
from tests.deviceplugin.daemon_rig import BRIDGED, DaemonRig, daemon
from tests.node import binaries
from tests.node.machine import Machine, MachineFailed
from tests.node.runtimes import runtime_for
from tests.polling import until

pytestmark = [pytest.mark.node, pytest.mark.needs_compiler]

UNIFIED = next(
    (path for path in ("/sys/fs/cgroup/unified", "/sys/fs/cgroup") if Path(path, "cgroup.procs").exists()), ""
)
BY_SLOTS = "containerd://2.4.2"
MIB = 1 << 20
_ALONE = 'umount -l /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && exec "$@"'


@dataclass(frozen=True, slots=True)
class Runc:
    """Starts containers of a pod as containerd's shim does."""

    node: DaemonRig
    program: str
    folder: Path
    group: str

    async def run(self, uid: str, container: str = "c0", container_id: str = "") -> tuple[int, str]:
        """Exit status and output of a container that prints the driver's limits with its first instruction."""
        container_id = container_id or token_hex(32)
        made = self.node.kubelet.running()[uid][container]
        bundle = self.folder / container_id
        (bundle / "rootfs").mkdir(parents=True)
        for name in ("bin", "lib", "lib64"):
            (bundle / "rootfs" / name).symlink_to(f"usr/{name}")
        group = f"/{self.group}/kubepods/pod{uid}/{container_id}"
        hooks = [
            {"path": each.path, "args": each.args, "env": each.env, "timeout": each.timeout} for each in made.hooks
        ]
        (bundle / "config.json").write_text(json.dumps(_bundle(hooks, group, str(self.node.kubelet.root))))
        words = ["unshare", "--mount", "sh", "-c", _ALONE, "sh", self.program, "--root", str(self.folder / "state")]
        done = await asyncio.to_thread(
            subprocess.run,
            [*words, "run", "--bundle", str(bundle), container_id],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.returncode, done.stdout + done.stderr


def _bundle(hooks: list[dict[str, Any]], group: str, shown: str) -> dict[str, Any]:
    bind = {"type": "bind", "options": ["rbind", "ro"]}
    return {
        "ociVersion": "1.2.0",
        "process": {
            "args": ["cat", "/proc/self/cgroup", "/seen/machine.limits"],
            "env": ["PATH=/usr/bin"],
            "cwd": "/",
            "user": {"uid": 0, "gid": 0},
        },
        "root": {"path": "rootfs"},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/usr", "source": "/usr", **bind},
            {"destination": "/seen", "source": shown, **bind},
        ],
        "hooks": {"createRuntime": hooks},
        "linux": {"cgroupsPath": group, "namespaces": [{"type": kind} for kind in ("mount", "pid")]},
    }


@asynccontextmanager
async def running(folder: Path, *flags: str) -> AsyncIterator[tuple[DaemonRig, Runc]]:
    """A daemon on a driver of release 615, and runc beside it."""
    if os.geteuid() or not UNIFIED or shutil.which("unshare") is None:
        pytest.skip("it needs root, unshare, and control groups of version 2")
    try:
        program = binaries.find("", "").path("runc")
    except NoBinaries as reason:
        pytest.skip(str(reason))
    group = f"topogpu-limits-{token_hex(4)}"
    kubepods = Path(UNIFIED, group, "kubepods")
    kubepods.mkdir(parents=True)
    description = replace(BRIDGED, software=replace(BRIDGED.software, driver="615.10"))
    try:
        host = folder / "host"
        (host / "sys/fs").mkdir(parents=True)
        (host / "sys/fs/cgroup").symlink_to(UNIFIED)
        async with daemon(
            *flags, host=host, description=description, runtime_version=BY_SLOTS, hami_core=False
        ) as node:
            yield node, Runc(node, program, folder, group)
    finally:
        for path, _, _ in os.walk(kubepods.parent, topdown=False):
            os.rmdir(path)


def shares(node: DaemonRig, *memory_mib: int) -> tuple[DeviceShare, ...]:
    return tuple(DeviceShare(uuid=node.uuid(gpu), memory_mib=mib, cores=0) for gpu, mib in enumerate(memory_mib))


async def test_runc_starts_a_container_only_after_the_driver_has_limited_each_of_its_gpus(tmp_path: Path) -> None:
    async with running(tmp_path) as (node, runc):
        uid = node.bind_shares("two", (shares(node, 3000, 5000),))
        await node.runs("two")
        status, output = await runc.run(uid, container_id=(container_id := token_hex(32)))
        group = f"{UNIFIED}/{runc.group}/kubepods/pod{uid}/{container_id}"
        assert status == 0, output
        assert output.splitlines()[-2:] == [
            f"{node.uuid(gpu)} 0 {mib * MIB} {group}" for gpu, mib in enumerate((3000, 5000))
        ]


async def test_runc_refuses_a_container_whose_limits_cannot_be_set_or_whose_daemon_is_dead(tmp_path: Path) -> None:
    async with running(tmp_path) as (node, runc):
        uid = node.bind_shares("part", (shares(node, 3000),))
        await node.runs("part")
        status, output = await runc.run(uid, container_id="short")
        assert (status, "control group of container short is not seen" in output) == (1, True), output
        (node.kubelet.root / "machine.limits").unlink()
        (node.kubelet.root / "machine.limits").mkdir()
        status, output = await runc.run(uid)
        assert (status, "the driver does not limit the memory of" in output) == (1, True), output
        (node.kubelet.root / "machine.limits").rmdir()
        assert (await runc.run(uid))[0] == 0
        await node.kill()
        status, output = await runc.run(uid)
        assert status == 1, output
        assert "error running createRuntime hook #0" in output


async def test_containerd_starts_a_slot_only_after_the_driver_has_limited_it(tmp_path: Path) -> None:
    """By the spec of the slot as our daemon writes it, which containerd reads and gives to runc."""
    async with running(tmp_path) as (node, runc):
        machine = Machine()
        machine.power_on()
        try:
            machine.run("sh", "-c", "umount -l /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup")
            found = binaries.find("", "")
            runtime = runtime_for(machine, found, tmp_path)
            runtime.configure()
            containerd = machine.start("runtime", runtime.command, runtime.environment)
            socket = machine.folder / runtime.socket.lstrip("/")
            await asyncio.to_thread(containerd.wait_for, socket.exists)
            uid = node.bind_shares("two", (shares(node, 3000, 5000),))
            await node.runs("two")
            (machine.folder / "run/cdi").mkdir()
            shutil.copy(node.cdi / SPEC_FILE, machine.folder / "run/cdi")
            rootfs = tmp_path / "rootfs"
            rootfs.mkdir()
            for name in ("bin", "lib", "lib64"):
                (rootfs / name).symlink_to(f"usr/{name}")
            (slot,) = node.kubelet.created[uid][0].cdi_devices
            container_id = token_hex(32)
            group = f"/{runc.group}/kubepods/pod{uid}/{container_id}"
            words = [found.path("ctr"), "--namespace", "k8s.io", "run", "--rm", "--device", slot, "--cgroup", group]
            for source, place in (("/usr", "/usr"), (str(node.kubelet.root), "/seen")):
                words += ["--mount", f"type=bind,src={source},dst={place},options=rbind:ro"]
            words += ["--cpu-shares", "0", "--runc-binary", found.path("runc"), "--rootfs", str(rootfs), container_id]
            output = await asyncio.to_thread(machine.run, *words, "/usr/bin/cat", "/seen/machine.limits")
            assert output.splitlines() == [
                f"{node.uuid(gpu)} 0 {mib * MIB} {UNIFIED}{group}" for gpu, mib in enumerate((3000, 5000))
            ]
            await node.kill()
            words[words.index(group)], words[-1] = f"{group}-again", token_hex(32)
            with pytest.raises(MachineFailed, match="error running createRuntime hook"):
                await asyncio.to_thread(machine.run, *words, "/usr/bin/cat", "/seen/machine.limits")
        finally:
            machine.discard()


async def test_a_container_that_ends_and_starts_again_in_runc_leaves_no_limit_behind(tmp_path: Path) -> None:
    async with running(tmp_path) as (node, runc):
        uid = node.bind_shares("part", (shares(node, 3000),))
        await node.runs("part")
        for _ in range(2):
            assert (await runc.run(uid))[0] == 0
        await until(lambda: node.counts('topogpu_memory_limit_changes_total{outcome="set"}'))
        assert not node.events("GPUMemoryLimitLost")
