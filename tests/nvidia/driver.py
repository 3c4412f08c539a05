"""A driver for NVIDIA's own programs: the fake NVML below a root folder as the driver's installer leaves one.

Its libraries are empty but for NVML. What the programs read of the kernel lies in `sys` and `proc`; a command that runs
`inside` a mount namespace sees them in their places.
"""

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from deviceplugin.container.device_nodes import DeviceFiles, read_hardware
from deviceplugin.container.edits import Hardware
from deviceplugin.machine.readings import MachineReading
from deviceplugin.nvml.reader import Nvml
from proto.devices import DeviceUUID
from simulation.machines.description import MachineDescription, MigDevice, gpu_uuid, mig_uuid
from simulation.nvml.build import build_library
from simulation.nvml.machine_file import MACHINE_FILE_VARIABLE, Fault, write_machine_file, write_sysfs

NODE = "node"
TRIPLE = f"{os.uname().machine}-linux-gnu"
GPU_MAJOR = 195
_UVM_MAJOR, _RIGHTS_MAJOR = 510, 236
_STEMS = ("libcuda", "libnvidia-ptxjitcompiler", "libnvidia-opencl", "libnvidia-encode")
_PROGRAMS = ("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control")
_FIRMWARE = ("gsp_ga10x.bin", "gsp_tu10x.bin")
_EMPTY_CONFIG, _EMPTY_RESOURCE = "\0" * 256, "0x0 0x0 0x0\n" * 7


class Driver:
    def __init__(self, description: MachineDescription, folder: Path) -> None:
        self.description, self.folder, self.root = description, folder, folder / "root"
        self.machine_file = folder / "machine"
        self.libraries = self.root / "usr/lib" / TRIPLE
        self.libraries.mkdir(parents=True)
        write_sysfs(description, folder / "sys")
        self._write_pci()
        self.set()
        self._write_libraries(description.software.driver)
        self._write_device_files()
        self._write_rights()

    def set(self, *faults: Fault) -> None:
        """What the driver shows from now on."""
        write_machine_file(self.description, self.machine_file, NODE, faults)

    def uuid(self, gpu: int) -> DeviceUUID:
        return DeviceUUID(gpu_uuid(self.description.id, gpu, NODE))

    def mig_uuids(self, gpu: int) -> list[DeviceUUID]:
        devices = self.description.gpus[gpu].mig_devices
        return [DeviceUUID(mig_uuid(self.description.id, gpu, device, NODE)) for device in devices]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, MACHINE_FILE_VARIABLE: str(self.machine_file), "LD_LIBRARY_PATH": str(self.libraries)}

    def reading(self) -> MachineReading:
        """What the daemon reads of it. All drivers of a process share one library: nvidia-ml-py keeps its functions."""
        os.environ[MACHINE_FILE_VARIABLE] = str(self.machine_file)
        nvml = Nvml(str(build_library()), sysfs_root=self.folder / "sys")
        try:
            return nvml.read_machine()
        finally:
            nvml.close()
            del os.environ[MACHINE_FILE_VARIABLE]

    def hardware(self) -> Hardware:
        return read_hardware(self.reading().gpus, DeviceFiles(self.root, self.folder / "proc"))

    def inside(self, *command: str, bound: Mapping[str, Path] | None = None) -> list[str]:
        """The command in a mount namespace of its own, with `bound` folders in further places."""
        places = {
            "/sys/bus/pci/devices": self.folder / "sys/bus/pci/devices",
            "/proc/driver": self.folder / "proc/driver",
        }
        script = [f"mount --bind {source} {place}" for place, source in places.items()]
        script += ["mount -t tmpfs none /run", "mount -t tmpfs none /var/lib"]
        for place, source in (bound or {}).items():
            script.append(f"mkdir -p {place} && mount --bind {source} {place}")
        return ["unshare", "--mount", "sh", "-ec", "; ".join([*script, 'exec "$@"']), "sh", *command]

    def run(self, *command: str) -> str:
        """What it prints, inside. Raises AssertionError where it fails."""
        done = subprocess.run(
            self.inside(*command), check=False, capture_output=True, text=True, env=self.environment, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _write_pci(self) -> None:
        """The files that NVIDIA's library of PCI devices reads beside those of `write_sysfs`."""
        ids = {gpu.bus.lower().removeprefix("0000"): gpu.pci_id for gpu in self.description.gpus}
        for device in (self.folder / "sys/bus/pci/devices").iterdir():
            vendor, _, number = ids.get(device.name, "10de:0000").partition(":")
            more = {"vendor": f"0x{vendor}\n", "device": f"0x{number}\n", "subsystem_vendor": f"0x{vendor}\n"}
            more |= {"subsystem_device": "0x0000\n", "config": _EMPTY_CONFIG, "resource": _EMPTY_RESOURCE}
            for name, text in more.items():
                (device / name).write_text(text)

    def _write_libraries(self, version: str) -> None:
        """ELF files with a soname, of which ldconfig makes the usual links."""
        for stem in _STEMS:
            file = self.libraries / f"{stem}.so.{version}"
            command = [
                "cc",
                "-shared",
                "-fPIC",
                "-nostdlib",
                "-x",
                "c",
                "-",
                f"-Wl,-soname,{stem}.so.1",
                "-o",
                str(file),
            ]
            subprocess.run(command, input="int answer;", text=True, check=True)
        shutil.copy(build_library(), self.libraries / f"libnvidia-ml.so.{version}")
        for stem in (*_STEMS, "libnvidia-ml"):
            (self.libraries / f"{stem}.so.1").symlink_to(f"{stem}.so.{version}")
        (self.root / "usr/bin").mkdir()
        for name in _PROGRAMS:
            (self.root / "usr/bin" / name).write_text("#!/bin/sh\n")
            (self.root / "usr/bin" / name).chmod(0o755)
        firmware = self.root / "lib/firmware/nvidia" / version
        firmware.mkdir(parents=True)
        for name in _FIRMWARE:
            (firmware / name).touch()

    def _write_device_files(self) -> None:
        nodes = {"null": (1, 3), "nvidiactl": (GPU_MAJOR, 255), "nvidia-modeset": (GPU_MAJOR, 254)}
        nodes |= {"nvidia-uvm": (_UVM_MAJOR, 0), "nvidia-uvm-tools": (_UVM_MAJOR, 1)}
        nodes |= {f"nvidia{minor}": (GPU_MAJOR, minor) for minor in range(len(self.description.gpus))}
        nodes |= {f"nvidia-caps/nvidia-cap{minor}": (_RIGHTS_MAJOR, minor) for minor in self._rights().values()}
        for name, number in nodes.items():
            path = self.root / "dev" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(*number))
            path.chmod(0o666)

    def _write_rights(self) -> None:
        minors = self._rights()
        names = self.folder / "proc/driver/nvidia-caps/mig-minors"
        names.parent.mkdir(parents=True)
        names.write_text("".join(f"{name} {minor}\n" for name, minor in minors.items()))
        for name, minor in minors.items():
            gpu, _, rest = name.partition("/")
            path = self.folder / "proc/driver/nvidia/capabilities" / (f"{gpu}/mig/{rest}" if rest else f"mig/{name}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")

    def _rights(self) -> dict[str, int]:
        """MIG's rights, numbered in the driver's order."""
        return {name: number for number, name in enumerate(self._names_of_rights(), 1)}

    def _names_of_rights(self) -> Iterator[str]:
        yield from ("config", "monitor")
        for index, gpu in enumerate(self.description.gpus):
            for instance in sorted({device.gi for device in gpu.mig_devices}):
                yield f"gpu{index}/gi{instance}/access"
                yield from (
                    f"gpu{index}/gi{instance}/ci{each.ci}/access" for each in gpu.mig_devices if each.gi == instance
                )


def with_mig(machine: MachineDescription, *devices: Sequence[MigDevice]) -> MachineDescription:
    """The machine with these MIG devices on its first GPUs, and the others without MIG."""
    gpus = [
        replace(gpu, mig="enabled", mig_devices=tuple(devices[index])) if index < len(devices) else gpu
        for index, gpu in enumerate(machine.gpus)
    ]
    return replace(machine, gpus=tuple(gpus))
