"""Reads the kernel's files about PCI devices, NUMA nodes and CPUs. A missing file means "unknown"."""

from pathlib import Path

from deviceplugin.machine.numa import parse_cpu_list
from proto.devices import UNKNOWN_NUMA


class Sysfs:
    """Reads below `root`, which is /sys unless a container mounts the host's elsewhere."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def numa_node(self, bus_id: str) -> int:
        """Returns the NUMA node of a PCI device given by its NVML bus id; UNKNOWN_NUMA if the kernel lacks it."""
        text = self._read(f"bus/pci/devices/{kernel_address(bus_id)}/numa_node")
        try:
            return int(text)
        except ValueError:
            return UNKNOWN_NUMA

    def is_switch(self, bus_id: str) -> bool:
        """NVSwitches are PCI class 0x0680, a bridge to something else."""
        return self._read(f"bus/pci/devices/{kernel_address(bus_id)}/class").startswith("0x0680")

    def pci_class(self, bus_id: str) -> int | None:
        """Returns the class of a PCI device; None if the kernel lacks it."""
        try:
            return int(self._read(f"bus/pci/devices/{kernel_address(bus_id)}/class"), 16)
        except ValueError:
            return None

    def product(self) -> str:
        """Returns what the machine calls itself in its DMI table; empty on machines without one."""
        return self._read("class/dmi/id/product_name")

    def gpus(self) -> frozenset[str]:
        """Returns the kernel addresses of this host's NVIDIA GPUs: what NVML should show.

        They include neither those that another driver has (vfio-pci for a virtual machine, nouveau for a display) nor
        the virtual functions of a GPU. Classes by the PCI ID repository: 0300 VGA controller, 0302 3D controller.
        """
        return frozenset(
            folder.name
            for folder in (self._root / "bus/pci/devices").glob("*")
            if self._read(f"bus/pci/devices/{folder.name}/vendor") == "0x10de"
            and self._read(f"bus/pci/devices/{folder.name}/class").startswith(("0x0300", "0x0302"))
            and not (folder / "physfn").exists()
            and _driver(folder) in ("", "nvidia")
        )

    def cpus_of_node(self) -> dict[int, frozenset[int]]:
        """Returns CPUs of each NUMA node; empty for nodes that are memory only."""
        nodes: dict[int, frozenset[int]] = {}
        for folder in (self._root / "devices/system/node").glob("node[0-9]*"):
            number = folder.name.removeprefix("node")
            if number.isdecimal():
                nodes[int(number)] = self._cpu_list(f"devices/system/node/{folder.name}/cpulist")
        return nodes

    def cpu_model(self) -> str:
        """Returns the CPU's name in /proc/cpuinfo, or "" without one."""
        try:
            lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        except OSError:
            return ""
        named = (line.partition(":")[2].strip() for line in lines if line.lower().startswith(("model name", "cpu\t")))
        return next(named, "")

    def _cpu_list(self, path: str) -> frozenset[int]:
        try:
            return parse_cpu_list(self._read(path))
        except ValueError:
            return frozenset()

    def _read(self, path: str) -> str:
        try:
            return (self._root / path).read_text(errors="replace").strip()
        except OSError:
            return ""


def _driver(folder: Path) -> str:
    """Returns the driver of a PCI device; empty if no driver has taken it."""
    try:
        return (folder / "driver").readlink().name
    except OSError:
        return ""


def kernel_address(bus_id: str) -> str:
    """NVML writes eight domain digits in upper case, the kernel four or more in lower case."""
    domain, _, rest = bus_id.lower().partition(":")
    try:
        return f"{int(domain, 16):04x}:{rest}"
    except ValueError:
        return bus_id.lower()
