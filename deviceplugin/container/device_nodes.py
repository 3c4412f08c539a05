"""Finds the device files that a container needs for its GPUs, and their paths on the host (edge)."""

import os
import re
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from deviceplugin.container.edits import DeviceNode, Hardware
from deviceplugin.machine.readings import GpuReading
from proto.devices import DeviceUUID

_CONTROL = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
UNIFIED_MEMORY = "/dev/nvidia-uvm"
"""CUDA does not start without it; NVML does."""
_MINOR = re.compile(r"^DeviceFileMinor:\s*(\d+)\s*$", re.MULTILINE)


class DeviceFiles:
    """`dev_root` is the host's folder that holds `dev`, seen at the same path by this process.

    It differs from / where the driver runs in a container. `proc_root` is /proc unless the host's is mounted elsewhere.
    """

    def __init__(self, dev_root: Path = Path("/"), proc_root: Path = Path("/proc")) -> None:
        self._dev_root = dev_root
        self._capabilities = proc_root / "driver/nvidia/capabilities"

    def control_nodes(self, imex_channels: Iterable[int] = ()) -> tuple[DeviceNode, ...]:
        """Returns the files that every GPU program opens, and the IMEX channels, as far as this driver has them."""
        names = (*_CONTROL, *(f"nvidia-caps-imex-channels/channel{channel}" for channel in imex_channels))
        return tuple(self._node(name) for name in names if (self._dev_root / "dev" / name).exists())

    def gpu_nodes(self, minor: int) -> tuple[DeviceNode, ...]:
        """Returns the file of one GPU, even if it is missing: then the runtime's error names it."""
        return (self._node(f"nvidia{minor}"),)

    def mig_nodes(self, minor: int, gpu_instance: int, compute_instance: int) -> tuple[DeviceNode, ...]:
        """Returns the GPU's file, and those of the rights to one MIG instance, if the driver has it.

        The rights' minor numbers stand in /proc/driver/nvidia/capabilities/gpu<minor>/mig (NVIDIA MIG user guide,
        "/proc based capabilities").
        """
        folder = self._capabilities / f"gpu{minor}" / "mig" / f"gi{gpu_instance}"
        minors = [_minor(folder / "access"), _minor(folder / f"ci{compute_instance}" / "access")]
        rights = tuple(self._node(f"nvidia-caps/nvidia-cap{right}") for right in minors if right is not None)
        return self.gpu_nodes(minor) + rights

    def _node(self, name: str) -> DeviceNode:
        path = f"/dev/{name}"
        host_path = str(self._dev_root / "dev" / name)
        return DeviceNode(path=path, host_path="" if host_path == path else host_path, number=_number(host_path))


def read_hardware(
    gpus: Sequence[GpuReading], files: DeviceFiles, imex_channels: Iterable[int] = (), *, simulated: bool = False
) -> Hardware:
    """Addresses and device files of these GPUs and their MIG devices; a GPU without a minor number has no files.

    `simulated` GPUs have those that are there. Of others, missing files are named too.
    """
    nodes: dict[DeviceUUID, tuple[DeviceNode, ...]] = {}
    addresses: dict[DeviceUUID, str] = {}
    for gpu in gpus:
        addresses |= dict.fromkeys((gpu.uuid, *(device.uuid for device in gpu.mig_devices)), gpu.bus_id)
        if gpu.minor is not None:
            nodes[gpu.uuid] = files.gpu_nodes(gpu.minor)
            nodes |= {device.uuid: files.mig_nodes(gpu.minor, device.gi, device.ci) for device in gpu.mig_devices}
    if simulated:
        nodes = {
            uuid: tuple(node for node in named if Path(node.host_path or node.path).exists())
            for uuid, named in nodes.items()
        }
    return Hardware(pci_addresses=addresses, control_nodes=files.control_nodes(imex_channels), gpu_nodes=nodes)


def _number(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (os.major(found.st_rdev), os.minor(found.st_rdev)) if stat.S_ISCHR(found.st_mode) else None


def _minor(path: Path) -> int | None:
    try:
        match = _MINOR.search(path.read_text(errors="replace"))
    except OSError:
        return None
    return int(match[1]) if match else None
