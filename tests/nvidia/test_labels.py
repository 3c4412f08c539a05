"""The daemon's labels about GPUs beside those of NVIDIA's own GPU feature discovery, on the same driver."""

import json
from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace

from deviceplugin.machine.discovery import NodeSharing
from deviceplugin.machine.features import feature_labels
from simulation import machines
from simulation.machines.description import MachineDescription, MigDevice
from tests.nvidia.conftest import MakeDriver
from tests.nvidia.driver import Driver, with_mig
from tests.nvidia.programs import Programs

pytestmark = pytest.mark.nvidia

DGX = machines.load("dgxa100-8x-a100-40g")
SMALL = tuple(MigDevice("1g.5gb", 4864, instance, 0) for instance in (7, 8, 9))
UNLIKE = (MigDevice("3g.20gb", 19968, 1, 0), MigDevice("2g.10gb", 9856, 3, 0), MigDevice("1g.5gb", 4864, 9, 0))
ABSENT_HERE = {"nvidia.com/vgpu.present": "false"}
"""GPU feature discovery says that the machine is no guest of vGPU; docs/configuration.md leaves that out."""


def theirs(programs: Programs, driver: Driver, sharing: NodeSharing) -> dict[str, str]:
    out, config = driver.folder / "labels", driver.folder / "config.json"
    resources = [{"name": "nvidia.com/gpu", "replicas": sharing.split_count}]
    shared = {"timeSlicing": {"resources": resources}} if sharing.split_count > 1 else {}
    config.write_text(json.dumps({"version": "v1", "flags": {"migStrategy": sharing.mig_strategy}, "sharing": shared}))
    options = ["--oneshot", "--use-node-feature-api=false", "--no-timestamp", "--machine-type-file=/nonexistent"]
    options += ["--device-discovery-strategy=nvml", f"--driver-root-ctr-path={driver.root}"]
    driver.run(programs.path("gpu-feature-discovery"), *options, f"--config-file={config}", f"--output-file={out}")
    return dict(line.split("=", 1) for line in out.read_text().splitlines())


def differences(programs: Programs, driver: Driver, **sharing: object) -> Mapping[str, tuple[str | None, str | None]]:
    """Each label that is not the same: NVIDIA's value and ours."""
    how = NodeSharing(**sharing)  # type: ignore[arg-type]
    nvidias, ours = theirs(programs, driver, how), feature_labels(driver.reading(), how)
    names = sorted(nvidias.keys() | ours.keys())
    return {name: (nvidias.get(name), ours.get(name)) for name in names if nvidias.get(name) != ours.get(name)}


def absent_here() -> dict[str, tuple[str, None]]:
    return {name: (value, None) for name, value in ABSENT_HERE.items()}


@pytest.mark.parametrize("machine", [name for name in machines.names() if name != "cpu-only"])
def test_labels_of_whole_gpus_are_those_of_gpu_feature_discovery(
    programs: Programs, driver_of: MakeDriver, machine: str
) -> None:
    driver = driver_of(machines.load(machine))
    assert differences(programs, driver, split_count=4) == absent_here()


@pytest.mark.parametrize(
    ("strategy", "devices", "replicas"),
    [("mixed", [UNLIKE, SMALL], 4), ("single", [SMALL] * 8, 1), ("single", [SMALL] * 7, 4), ("none", [SMALL] * 8, 4)],
)
def test_labels_of_mig_are_those_of_gpu_feature_discovery(
    programs: Programs, driver_of: MakeDriver, strategy: str, devices: Sequence[Sequence[MigDevice]], replicas: int
) -> None:
    driver = driver_of(with_mig(DGX, *devices))
    assert differences(programs, driver, mig_strategy=strategy, split_count=replicas) == absent_here()


def test_labels_of_mig_single_differ_where_nvidia_shares_instances_which_the_daemon_never_does(
    programs: Programs, driver_of: MakeDriver
) -> None:
    found = differences(programs, driver_of(with_mig(DGX, *[SMALL] * 8)), mig_strategy="single", split_count=4)
    product = "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"
    assert found == absent_here() | {
        "nvidia.com/gpu.product": (f"{product}-SHARED", product),
        "nvidia.com/gpu.replicas": ("4", "1"),
        "nvidia.com/gpu.sharing-strategy": ("time-slicing", "none"),
    }


def mixed_models() -> MachineDescription:
    machine = machines.load("8x-rtx4090-dual-epyc")
    a100 = machines.load("4x-a100-pcie-80g-bridged").gpus[0]
    gpus = [replace(a100, bus=gpu.bus, numa=gpu.numa) if index >= 3 else gpu for index, gpu in enumerate(machine.gpus)]
    return replace(machine, gpus=tuple(gpus))


def test_labels_of_several_models_are_of_the_most_frequent_one_where_nvidia_takes_any(
    programs: Programs, driver_of: MakeDriver
) -> None:
    driver = driver_of(mixed_models())
    sharing = NodeSharing(split_count=4)
    names = {gpu.name.replace(" ", "-") + "-SHARED" for gpu in driver.description.gpus}
    assert theirs(programs, driver, sharing)["nvidia.com/gpu.product"] in names
    ours = feature_labels(driver.reading(), sharing)
    assert (ours["nvidia.com/gpu.product"], ours["nvidia.com/gpu.count"]) == ("NVIDIA-A100-80GB-PCIe-SHARED", "5")
