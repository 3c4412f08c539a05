from pathlib import Path

import pytest

from deviceplugin.container.device_nodes import DeviceFiles, read_hardware
from deviceplugin.container.edits import DeviceNode, Hardware
from deviceplugin.machine.readings import GpuReading, MigReading
from proto.devices import DeviceUUID
from tests.deviceplugin.gpus import A, B

MIG = DeviceUUID("MIG-cccccccc-0000-0000-0000-000000000000")
BUS_A, BUS_B = "00000000:07:00.0", "00000000:0F:00.0"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A driver container's root with two GPUs, no MOFED and one IMEX channel; MIG instance 3/0 on the second."""
    names = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidia1", "nvidia-caps-imex-channels/channel0")
    for name in names:
        node = tmp_path / "dev" / name
        node.parent.mkdir(parents=True, exist_ok=True)
        node.touch()
    for name, minor in (("access", 30), ("ci0/access", 31)):
        right = tmp_path / "proc/driver/nvidia/capabilities/gpu1/mig/gi3" / name
        right.parent.mkdir(parents=True, exist_ok=True)
        right.write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
    return tmp_path


@pytest.fixture
def files(root: Path) -> DeviceFiles:
    return DeviceFiles(root, root / "proc")


def nodes(root: Path, *names: str) -> tuple[DeviceNode, ...]:
    return tuple(DeviceNode(path=f"/dev/{name}", host_path=f"{root}/dev/{name}") for name in names)


def test_control_nodes_are_those_the_driver_has(root: Path, files: DeviceFiles) -> None:
    control = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
    assert files.control_nodes() == nodes(root, *control)
    assert files.control_nodes((0, 1)) == nodes(root, *control, "nvidia-caps-imex-channels/channel0")


def test_a_gpus_file_is_named_even_when_it_is_missing(root: Path, files: DeviceFiles) -> None:
    assert files.gpu_nodes(7) == nodes(root, "nvidia7")


def test_the_hosts_own_dev_needs_no_host_path() -> None:
    assert DeviceFiles().gpu_nodes(0) == (DeviceNode(path="/dev/nvidia0"),)


def test_a_mig_instance_has_its_gpus_file_and_two_rights(root: Path, files: DeviceFiles) -> None:
    assert files.mig_nodes(1, 3, 0) == nodes(root, "nvidia1", "nvidia-caps/nvidia-cap30", "nvidia-caps/nvidia-cap31")


def test_an_instance_that_is_gone_has_no_rights(root: Path, files: DeviceFiles) -> None:
    assert files.mig_nodes(1, 4, 0) == nodes(root, "nvidia1")


def test_a_right_in_an_unknown_form_is_no_right(root: Path, files: DeviceFiles) -> None:
    (root / "proc/driver/nvidia/capabilities/gpu1/mig/gi3/access").write_text("DeviceFileMinor: \xff\n")
    assert files.mig_nodes(1, 3, 0) == nodes(root, "nvidia1", "nvidia-caps/nvidia-cap31")


def test_hardware_of_a_machine(root: Path, files: DeviceFiles) -> None:
    instance = MigReading(uuid=MIG, profile="1g.5gb", gi=3, ci=0, parent=B)
    gpus = (
        GpuReading(index=0, uuid=A, name="A100", bus_id=BUS_A),
        GpuReading(index=1, uuid=B, name="A100", bus_id=BUS_B, minor=1, mig_enabled=True, mig_devices=(instance,)),
    )
    assert read_hardware(gpus, files) == Hardware(
        pci_addresses={A: BUS_A, B: BUS_B, MIG: BUS_B},
        control_nodes=nodes(root, "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"),
        gpu_nodes={
            B: nodes(root, "nvidia1"),
            MIG: nodes(root, "nvidia1", "nvidia-caps/nvidia-cap30", "nvidia-caps/nvidia-cap31"),
        },
    )


def test_simulated_gpus_have_only_the_files_that_are_there(root: Path, files: DeviceFiles) -> None:
    gpus = (
        GpuReading(index=0, uuid=A, name="A100", bus_id=BUS_A, minor=7),
        GpuReading(index=1, uuid=B, name="A100", bus_id=BUS_B, minor=1),
    )
    assert read_hardware(gpus, files, simulated=True).gpu_nodes == {A: (), B: nodes(root, "nvidia1")}
    assert read_hardware(gpus, files).gpu_nodes == {A: nodes(root, "nvidia7"), B: nodes(root, "nvidia1")}
