"""Settings of what containers get."""

from functools import partial
from typing import Any

from deviceplugin.configuration.groups import of_containers, of_sharing
from deviceplugin.container.edits import AllocationSettings, DeviceListStrategy, DriverFeature
from program.settings.declared import Alias, part
from program.settings.kinds import Kind, Several, Switch, Whole, Words, words_of


def _feature(feature: DriverFeature, device_config: str, kind: Kind | None = None) -> Alias:
    """Returns another name of a switch that adds the feature to the list."""
    return Alias(
        kind=kind or Switch(),
        means=lambda wanted: (feature,) if wanted else None,
        environment=f"{feature.upper()}_ENABLED" if kind is None else "IMEX_CHANNEL_IDS",
        flags=(f"--{feature}-enabled",) if kind is None else ("--imex-channel-ids",),
        device_config=device_config,
    )


CONTAINERS: Any = part(
    partial(AllocationSettings, libcuda_log_level="1"),
    disable_core_limit=of_sharing(
        kind=Switch(),
        help="HAMi-core does not hold containers to their share of a GPU's cores.",
        device_config="nvidia.disableCoreLimit",
    ),
    strategies=of_containers(
        kind=Several(of=words_of(DeviceListStrategy), at_least=1),
        help="How the container runtime learns the GPUs: envvar, volume-mounts, cdi-annotations, cdi-cri, or several; "
        "or driver-files: the files of the driver below driver_root and the GPUs' device files, for runtimes without "
        "NVIDIA's toolkit.",
        key="device_list_strategy",
        device_config="flags.plugin.deviceListStrategy",
    ),
    pass_device_specs=of_containers(
        kind=Switch(),
        help="Also give kubelet the GPUs' device files, for runtimes that do not add them.",
        device_config="flags.plugin.passDeviceSpecs",
    ),
    features=of_containers(
        kind=Several(of=words_of(DriverFeature)),
        help="What every container gets besides GPUs: gdrcopy, gds (GPUDirect Storage), the devices of mofed, and "
        "imex: IMEX channel 0.",
        aliases=(
            _feature(DriverFeature.GDRCOPY, "flags.gdrcopyEnabled"),
            _feature(DriverFeature.GDS, "flags.gdsEnabled"),
            _feature(DriverFeature.MOFED, "flags.mofedEnabled"),
            _feature(DriverFeature.IMEX, "imex.channelIDs", Several(of=Whole(minimum=0, maximum=0))),
        ),
    ),
    libcuda_log_level=of_containers(
        kind=Words(words=("", "0", "1", "2", "3", "4")),
        help="How much HAMi-core prints inside containers: 0 and 1 errors, 2 also warnings, 3 also information, 4 all. "
        "Empty leaves it to HAMi-core.",
        device_config="nvidia.libCudaLogLevel",
        node_config="libcudaloglevel",
    ),
)
