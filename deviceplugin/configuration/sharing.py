"""Settings of how a node's GPUs are shared."""

import re
from typing import Any

from deviceplugin.configuration import MANY, of_sharing
from deviceplugin.machine.discovery import NodeSharing
from program.settings.declared import Alias, Items, part
from program.settings.kinds import Number, Parsed, Several, Text, Whole, Words

_NO_DYNAMIC_MIG = (
    "this daemon does not create MIG devices on demand; to share MIG devices that exist already, set mig_strategy"
)
_UUID = "[A-Za-z0-9-]+"
_INDEX = Whole(minimum=0, maximum=MANY)


def _read_gpu(text: str) -> str:
    """Reads the UUID of a GPU, or its index without leading zeros. Raises ValueError."""
    if not re.fullmatch(_UUID, text):
        raise ValueError(text)
    if not text.isdecimal():
        return text
    if int(text) > MANY:
        raise ValueError(text)
    return str(int(text))


_GPU = Parsed(expected="the UUID or the index of a GPU", read=_read_gpu, write=str, pattern=_UUID, numbers=True)

SHARING: Any = part(
    NodeSharing,
    split_count=of_sharing(
        kind=Whole(minimum=1, maximum=1000),
        help="How many containers may share one GPU.",
        key="device_split_count",
        device_config="nvidia.deviceSplitCount",
        node_config="devicesplitcount",
    ),
    memory_scaling=of_sharing(
        kind=Number(above=0, maximum=100),
        help="Advertised memory of a GPU as a multiple of what it has. Above 1 it is promised more than once: there is "
        "no virtual memory, and what containers use beyond the GPU's own memory fails.",
        key="device_memory_scaling",
        device_config="nvidia.deviceMemoryScaling",
        node_config="devicememoryscaling",
    ),
    core_scaling=of_sharing(
        kind=Number(above=0, maximum=100),
        help="Advertised cores of a GPU as a multiple of 100 %.",
        key="device_cores_scaling",
        device_config="nvidia.deviceCoreScaling",
        node_config="devicecorescaling",
    ),
    preconfigured_memory_mib=of_sharing(
        kind=Whole(minimum=0, maximum=2**31 - 1),
        help="Memory of GPUs for which the driver reports none. 0: such GPUs are not shared.",
        key="preconfigured_device_memory",
        unit="MiB",
        device_config="nvidia.preConfiguredDeviceMemory",
        node_config="preconfigureddevicememory",
    ),
    mode=of_sharing(
        kind=Words(words=("hami-core", "mps"), refusals={"mig": _NO_DYNAMIC_MIG}),
        help="The mode that every GPU is registered with; a name alone: no MPS is started.",
        key="operating_mode",
        node_config="operatingmode",
    ),
    mig_strategy=of_sharing(
        kind=Words(words=("none", "single", "mixed")),
        help="How MIG devices that exist on the GPUs are offered: not at all, under the resource name, or by profile.",
        device_config="flags.migStrategy",
        node_config="migstrategy",
    ),
    hidden=of_sharing(
        kind=Several(of=_GPU),
        help="GPUs and MIG devices that are not shared.",
        key="filter_devices",
        aliases=(
            Alias(
                kind=Several(of=Text(expected="the UUID of a GPU", pattern=_UUID)),
                means=lambda uuids: Items(tuple(uuids)),
                node_config="filterdevices.uuid",
            ),
            Alias(
                kind=Several(of=_INDEX),
                means=lambda indices: Items(tuple(map(str, indices))),
                node_config="filterdevices.index",
            ),
        ),
    ),
)
