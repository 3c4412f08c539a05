"""NVIDIA's own device plugin beside our daemon, on the same driver: what a container gets, and which GPUs are ill."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from deviceplugin.container.edits import AllocationSettings, ContainerFacts, DeviceListStrategy, container_edits
from deviceplugin.health.step import HealthSettings
from deviceplugin.machine.discovery import NodeSharing, discover_devices
from proto.devices import DeviceShare
from simulation import machines
from simulation.nvml.machine_file import MachineEvent
from tests.nvidia.conftest import MakeDriver
from tests.nvidia.driver import Driver
from tests.nvidia.plugin import NvidiasPlugin
from tests.nvidia.programs import Programs

pytestmark = pytest.mark.nvidia

OURS_ALONE = {
    "envvar": {
        "NVIDIA_IMEX_CHANNELS": "void",
        "NVIDIA_NVSWITCH": "disabled",
        "NVIDIA_GDRCOPY": "disabled",
        "NVIDIA_GDS": "disabled",
        "NVIDIA_MOFED": "disabled",
    },
    "cdi": {"NVIDIA_VISIBLE_DEVICES": "void"},
}
"""Variables that NVIDIA's plugin does not set. An image's own would open more than was decided."""
HIGHEST_XID = 175
SENTINEL_XID = 79
"""The GPU has fallen off the bus: fatal for both."""


def ours(driver: Driver, chosen: Sequence[str], strategies: str, *, specs: bool) -> dict[str, Any]:
    """Without the limits, which NVIDIA's plugin does not know."""
    inventory = {device.uuid: device for device in discover_devices(driver.reading(), NodeSharing(split_count=1))}
    shares = tuple(
        DeviceShare(uuid=uuid, memory_mib=device.memory_mib, cores=100)
        for uuid, device in inventory.items()
        if uuid in chosen
    )
    settings = AllocationSettings(
        strategies=tuple(map(DeviceListStrategy, strategies.split(","))), pass_device_specs=specs
    )
    facts = ContainerFacts(pod_uid="pod", name="main")
    edits = container_edits(shares, inventory, facts, settings, None, hardware=driver.hardware())
    return {
        "env": {name: value for name, value in edits.env.items() if not name.startswith("CUDA_")},
        "mounts": sorted((mount.container_path, mount.host_path) for mount in edits.mounts),
        "devices": sorted((device.path, device.host_path or device.path) for device in edits.devices),
        "annotations": sorted(edits.annotations.values()),
        "cdi": sorted(edits.cdi_devices),
    }


async def theirs(
    programs: Programs, driver: Driver, chosen: Sequence[str], strategies: str, *, specs: bool
) -> dict[str, Any]:
    roots = (f"--{name}={driver.root}" for name in ("driver-root", "dev-root", "driver-root-ctr-path"))
    options = [f"--device-list-strategy={strategies}", f"--pass-device-specs={str(specs).lower()}", *roots]
    options += [f"--nvidia-cdi-hook-path={programs.path('nvidia-cdi-hook')}"]
    async with NvidiasPlugin(programs, driver, *options) as plugin:
        answer = await plugin.allocate(*chosen)
    return {
        "env": dict(answer.envs),
        "mounts": sorted((mount.container_path, mount.host_path) for mount in answer.mounts),
        "devices": sorted((device.container_path, device.host_path) for device in answer.devices),
        "annotations": sorted(answer.annotations.values()),
        "cdi": sorted(device.name for device in answer.cdi_devices),
    }


@pytest.mark.parametrize("specs", [False, True], ids=["", "device-specs"])
@pytest.mark.parametrize(
    "strategies", ["envvar", "volume-mounts", "cdi-annotations", "cdi-cri", "envvar,cdi-annotations"]
)
async def test_a_container_of_two_whole_gpus_gets_what_nvidias_plugin_gives_it(
    programs: Programs, driver_of: MakeDriver, strategies: str, specs: bool
) -> None:
    driver = driver_of(machines.load("hgxh100-8x-h100-80g"))
    chosen = [driver.uuid(0), driver.uuid(1)]
    found = await theirs(programs, driver, chosen, strategies, specs=specs)
    added = OURS_ALONE["cdi" if strategies.startswith("cdi") else "envvar"]
    assert {**found, "env": {**found["env"], **added}} == ours(driver, chosen, strategies, specs=specs)


async def test_the_xids_that_make_a_gpu_unhealthy_are_those_of_nvidias_plugin(
    programs: Programs, driver_of: MakeDriver
) -> None:
    """A first event shows that the plugin listens, and a last one that it has heard all before it."""
    machine = machines.load("dgx2-16x-v100-32g")
    *others, first, last = range(len(machine.gpus))

    async def fatal(xids: Sequence[int]) -> set[int]:
        driver = driver_of(machine)
        async with NvidiasPlugin(programs, driver) as plugin:
            begins = iter(range(1, 1000))
            ill = plugin.unhealthy(driver.uuid(first))
            while not ill.done():
                driver.set(MachineEvent(gpu=first, data=SENTINEL_XID, at_seconds=next(begins) / 1000))
                await asyncio.wait((ill,), timeout=0.5)
            events = [MachineEvent(gpu=gpu, data=xid) for gpu, xid in zip(others, xids, strict=False)]
            driver.set(*events, MachineEvent(gpu=last, data=SENTINEL_XID))
            found = await plugin.unhealthy(driver.uuid(last))
        return {xid for gpu, xid in zip(others, xids, strict=False) if driver.uuid(gpu) in found}

    every = range(1, HIGHEST_XID + 1)
    turns = [every[begin : begin + len(others)] for begin in range(0, len(every), len(others))]
    theirs = set().union(*await asyncio.gather(*map(fatal, turns)))
    assert theirs == set(filter(HealthSettings().is_fatal, every))
