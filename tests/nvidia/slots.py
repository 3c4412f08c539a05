"""Slots as the daemon writes them, for containers of the real runtime."""

from collections.abc import Sequence
from dataclasses import replace

from deviceplugin.container.cdi import qualified
from deviceplugin.container.driver_root import DriverRoot
from deviceplugin.container.edits import (
    CDI_KIND,
    AllocationSettings,
    ContainerFacts,
    DeviceListStrategy,
    container_edits,
)
from deviceplugin.machine.discovery import NodeSharing, discover_devices
from deviceplugin.slots.files import SlotFiles
from deviceplugin.slots.slot import applied
from proto.devices import DeviceShare
from tests.nvidia.driver import TRIPLE
from tests.nvidia.programs import Programs
from tests.nvidia.runtime import Host

SLOT = qualified("a")


def write_slot(
    programs: Programs,
    host: Host,
    strategy: DeviceListStrategy,
    gpus: Sequence[int],
    *,
    driver_mib: Sequence[int] = (),
    hook: str = "",
) -> None:
    """Defines SLOT with these GPUs, over the CDI specs of nvidia-ctk: whole ones, or the parts that the driver holds.
    `hook` is a script in the place of ours.
    """
    driver = host.driver
    root, options = str(driver.root), ["--mode=nvml", "--format=json", "--device-name-strategy=uuid"]
    options += [f"--vendor={CDI_KIND.partition('/')[0]}", f"--driver-root={root}", f"--dev-root={root}"]
    options += [f"--nvidia-cdi-hook-path={programs.path('nvidia-cdi-hook')}"]
    text = driver.run(programs.path("nvidia-ctk"), "cdi", "generate", *options)
    (host.cdi / "gpus.json").write_text(text)
    inventory = {device.uuid: device for device in discover_devices(driver.reading(), NodeSharing())}
    devices = [inventory[driver.uuid(gpu)] for gpu in gpus]
    limits = dict(zip((each.uuid for each in devices), driver_mib, strict=False))
    shares = tuple(
        DeviceShare(uuid=each.uuid, memory_mib=limits.get(each.uuid, each.memory_mib), cores=100) for each in devices
    )
    mounts = DriverRoot(host=root, triple=TRIPLE).files().mounts
    hardware = replace(driver.hardware(), driver_mounts=mounts)
    facts = ContainerFacts(pod_uid="pod", name="main")
    settings = AllocationSettings(strategies=(strategy,))
    edits = applied(container_edits(shares, inventory, facts, settings, None, hardware=hardware, driver_mib=limits))
    if hook:
        edits = replace(edits, hooks=({"hookName": "createRuntime", "path": "/bin/sh", "args": ["sh", "-c", hook]},))
    files = SlotFiles(str(host.cdi), [str(host.cdi)])
    files.write([files.spec("a", edits)])
