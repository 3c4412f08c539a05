"""The table of the daemon's settings: flags, readers, `--print-config` and the manual derive from it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from deviceplugin.configuration.groups import CHART, NODE, OBSERVATION, of_containers, of_sharing
from deviceplugin.configuration.health import HEALTH, REMEDIATION
from deviceplugin.configuration.node import AGENT, HOST, KUBELET, TOTAL_NAMES
from deviceplugin.configuration.sharing import SHARING
from deviceplugin.container.edits import AllocationSettings, DeviceListStrategy, DriverFeature
from deviceplugin.health.step import HealthSettings
from deviceplugin.machine.discovery import NodeSharing
from deviceplugin.settings import AgentSettings, HostSettings, KubeletSettings, RemediationSettings, TotalNames
from program.address import ListenAddress
from program.settings.declared import Alias, Table, part
from program.settings.kinds import Kind, Several, Switch, Whole, Words, words_of
from program.settings.shared import kubeconfig, log_format, log_level, metrics_bind_address


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


_METRICS_ADDRESS = metrics_bind_address(9394, group=OBSERVATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The effective value of every setting, by the part of the daemon that it is for."""

    agent: AgentSettings = AGENT
    kubeconfig: str = kubeconfig(group=NODE, by_node=False)
    host: HostSettings = HOST
    kubelet: KubeletSettings = KUBELET
    total_names: TotalNames = TOTAL_NAMES
    sharing: NodeSharing = SHARING
    containers: AllocationSettings = CONTAINERS
    health: HealthSettings = HEALTH
    remediation: RemediationSettings = REMEDIATION
    metrics_bind_address: ListenAddress | None = _METRICS_ADDRESS
    log_format: str = log_format(group=OBSERVATION, chart=CHART)
    log_level: str = log_level(group=OBSERVATION, chart=CHART)


def conflicts(configuration: Configuration) -> Iterator[str]:
    """Yields the conflicts between settings, one sentence each."""
    strategies = configuration.containers.strategies
    if DeviceListStrategy.DRIVER_FILES not in strategies:
        return
    if len(strategies) > 1:
        yield f"device_list_strategy is {', '.join(strategies)}; driver-files goes with no other"
    if not configuration.host.driver_root:
        yield "device_list_strategy is driver-files, which needs driver_root: where the host has the NVIDIA driver"
    for feature in configuration.containers.features:
        if feature is not DriverFeature.IMEX:
            needs = "which needs NVIDIA's container toolkit"
            yield f"features has {feature}, {needs}; device_list_strategy is driver-files"


TABLE = Table(
    Configuration,
    conflicts,
    former={
        "health_recovery_seconds": "it is a tenth of remediation_seconds",
        "remediation_taint": "add taint-all or taint-any to the list remediation",
        "remediation_evictions_per_hour": "all nodes together evict 30 pods an hour",
    },
)
