"""Creates what containers will need on the node before the first of them starts, or logs what is missing."""

import logging
from functools import partial

from deviceplugin.changes import Changes
from deviceplugin.container.cdi_files import SpecGenerator, ensure_defined
from deviceplugin.container.edits import CDI_KIND, AllocationSettings, DeviceListStrategy, cdi_names
from deviceplugin.gpus import Gpus
from deviceplugin.own_threads import OwnThreads

log = logging.getLogger(__name__)

_CDI_STRATEGIES = frozenset({DeviceListStrategy.CDI_ANNOTATIONS, DeviceListStrategy.CDI_CRI})


async def set_up_node(gpus: Gpus, changes: Changes, allocation: AllocationSettings, generator: SpecGenerator) -> None:
    """Generates NVIDIA's CDI specs once the GPUs are known, where they are missing."""
    if not _CDI_STRATEGIES.intersection(allocation.strategies):
        return
    while not gpus.inventory.devices:
        await changes.next().wait()
    uuids = [device.uuid for device in gpus.inventory.devices]
    names = cdi_names(uuids, allocation)
    hardware = gpus.inventory.hardware
    problem = await OwnThreads("cdi specs").call(partial(ensure_defined, names, CDI_KIND, generator, hardware=hardware))
    if problem:
        log.error("%s", problem)
