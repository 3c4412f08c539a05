"""Daemons over the fake driver, which limits GPU memory by control group."""

import fcntl
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec.structs import replace

from proto.devices import DeviceShare, DeviceUUID
from simulation.machines.description import MachineDescription
from tests.deviceplugin.daemon_rig import BRIDGED, DaemonRig, daemon

BY_SLOTS = "containerd://2.4.2"
MIB = 1 << 20


def with_driver(version: str) -> MachineDescription:
    return replace(BRIDGED, software=replace(BRIDGED.software, driver=version))


@asynccontextmanager
async def limiting(
    *flags: str, driver: str = "615.10", hami_core: bool = False, description: MachineDescription | None = None
) -> AsyncIterator[DaemonRig]:
    async with daemon(
        *flags,
        description=description or with_driver(driver),
        runtime_version=BY_SLOTS,
        hami_core=hami_core,
        control_groups=True,
    ) as node:
        yield node
        if node.process.returncode is None:
            node.process.terminate()  # a process that is killed leaves no record of what it reached
            await node.ended()


def limits_file(node: DaemonRig) -> Path:
    return node.kubelet.root / "machine.limits"


def held(node: DaemonRig, uid: str, container: str = "c0") -> Mapping[DeviceUUID, int]:
    """The hard limits of the container in MiB, as the driver has them."""
    found = {}
    for gpu, soft, hard, folder in (line.split(" ", 3) for line in _limits(node)):
        assert soft == "0"
        if folder == group(node, uid, container):
            found[DeviceUUID(gpu)] = int(hard) // MIB
    return found


def _limits(node: DaemonRig) -> list[str]:
    """The lines of the driver's file. It is empty for a moment whenever the driver writes it, under a lock."""
    if not limits_file(node).exists():
        return []
    with limits_file(node).open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        return file.read().splitlines()


def group(node: DaemonRig, uid: str, container: str = "c0") -> str:
    made = node.kubelet.running()[uid][container]
    return str(node.kubelet.root / f"cgroup/kubepods/pod{uid}/{made.container_id}")


def part(node: DaemonRig, gpu: int, memory_mib: int = 3000, cores: int = 0) -> DeviceShare:
    return DeviceShare(uuid=node.uuid(gpu), memory_mib=memory_mib, cores=cores)


def bind(node: DaemonRig, name: str, gpu: int) -> str:
    """A pod whose one container has a part of the GPU's memory; its UID."""
    return node.bind(name, lent=((part(node, gpu),),))


def libraries(node: DaemonRig, uid: str) -> list[str]:
    """What the pod's containers mount of HAMi-core's library."""
    mounts = [mount.container_path for made in node.kubelet.created[uid] for mount in made.mounts]
    return [path for path in mounts if "libvgpu" in path]


def pipes(node: DaemonRig) -> list[str]:
    """The pipes of hooks that the daemon has open."""
    return [path for path in opened_by(node.process.pid) if path.endswith(("/ask", "/answer"))]


def opened_by(pid: int) -> list[str]:
    """The files that the process has open."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(os.readlink(link))
        except OSError:
            continue
    return found
