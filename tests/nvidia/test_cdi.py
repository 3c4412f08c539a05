"""The CDI specs that the daemon generates beside those of NVIDIA's own nvidia-ctk, on the same driver."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from deviceplugin.container.cdi import gpu_spec
from deviceplugin.container.driver_root import DriverRoot
from simulation import machines
from simulation.machines.description import MachineDescription, MigDevice
from tests.nvidia.conftest import MakeDriver
from tests.nvidia.driver import TRIPLE, Driver, with_mig
from tests.nvidia.programs import Programs

pytestmark = pytest.mark.nvidia

DGX = machines.load("dgxa100-8x-a100-40g")
CUT = with_mig(DGX, [MigDevice("3g.20gb", 19968, 1, 0), MigDevice("1g.5gb", 4864, 9, 0)])
IN_RED_HATS_FOLDER = "/usr/lib64/"
"""Every library is there a second time with us, because no hook runs ldconfig; nvidia-ctk has Debian's folder alone."""
Spec = Mapping[str, Any]


def theirs(programs: Programs, driver: Driver) -> Spec:
    options = [f"--driver-root={driver.root}", f"--dev-root={driver.root}", "--mode=nvml", "--format=json"]
    options += ["--device-name-strategy=uuid", f"--nvidia-cdi-hook-path={programs.path('nvidia-cdi-hook')}"]
    found: Spec = json.loads(driver.run(programs.path("nvidia-ctk"), "cdi", "generate", *options))
    return found


def nodes(edits: Spec) -> set[tuple[object, ...]]:
    keys = ("path", "hostPath", "major", "minor")
    return {tuple(node.get(key, 0) for key in keys) for node in edits.get("deviceNodes", [])}


def devices(spec: Spec) -> dict[str, set[tuple[object, ...]]]:
    return {device["name"]: nodes(device["containerEdits"]) for device in spec["devices"] if device["name"] != "all"}


def placed(edits: Spec) -> dict[str, str]:
    """The driver's file behind each path in a container: nvidia-ctk's mounts, and the links that its hooks make."""
    mounts = {mount["containerPath"]: mount["hostPath"] for mount in edits["mounts"]}
    pairs = [pair for hook in edits["hooks"] if hook["args"][1] == "create-symlinks" for pair in hook["args"][3::2]]
    links = {
        link: os.path.normpath(Path(link).parent / target) for target, _, link in (p.partition("::") for p in pairs)
    }
    for link in links:
        path = link
        while path in links and path not in mounts:
            path = links[path]
        mounts[link] = mounts[path]
    return {place: os.path.realpath(path) for place, path in mounts.items()}


@pytest.mark.parametrize(
    "machine",
    [DGX, CUT, machines.load("hgxh100-8x-h100-80g"), machines.load("gb200-nvl72-tray"), machines.load("1x-t4-vm")],
    ids=["dgx-a100", "mig", "hgx-h100", "gb200", "t4"],
)
def test_a_generated_cdi_spec_opens_the_device_files_of_nvidia_ctk(
    programs: Programs, driver_of: MakeDriver, machine: MachineDescription
) -> None:
    """Ours has the GPUs that are divided too, each with its own file alone."""
    driver = driver_of(machine)
    nvidias, ours = theirs(programs, driver), gpu_spec("nvidia.com/gpu", driver.hardware())
    divided = {driver.uuid(index) for index, gpu in enumerate(machine.gpus) if gpu.mig_devices}
    assert {name: files for name, files in devices(ours).items() if name not in divided} == devices(nvidias)
    assert nodes(ours["containerEdits"]) == nodes(nvidias["containerEdits"])  # type: ignore[arg-type]


def test_the_drivers_files_are_mounted_as_by_nvidia_ctk(programs: Programs, driver_of: MakeDriver) -> None:
    driver = driver_of(DGX)
    root = str(driver.root)
    files = DriverRoot(host=root, triple=TRIPLE).files()
    ours = {mount.container_path: os.path.realpath(mount.host_path) for mount in files.mounts}
    debians = {place: path for place, path in ours.items() if not place.startswith(IN_RED_HATS_FOLDER)}
    assert debians == placed(theirs(programs, driver)["containerEdits"])
    doubled = {place for place in debians if place.startswith(f"/usr/lib/{TRIPLE}/")}
    assert ours.keys() - debians.keys() == {IN_RED_HATS_FOLDER + Path(place).name for place in doubled}
