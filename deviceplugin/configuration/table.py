"""The table of the daemon's settings: flags, readers, `--print-config` and the manual derive from it."""

from collections.abc import Iterator
from dataclasses import dataclass

from deviceplugin.configuration.containers import CONTAINERS
from deviceplugin.configuration.groups import CHART, NODE, OBSERVATION
from deviceplugin.configuration.health import HEALTH, REMEDIATION
from deviceplugin.configuration.node import AGENT, HOST, KUBELET, TOTAL_NAMES
from deviceplugin.configuration.sharing import SHARING
from deviceplugin.container.edits import AllocationSettings, DeviceListStrategy, DriverFeature
from deviceplugin.health.step import HealthSettings
from deviceplugin.machine.discovery import NodeSharing
from deviceplugin.settings import AgentSettings, HostSettings, KubeletSettings, RemediationSettings, TotalNames
from program.address import ListenAddress
from program.settings.declared import Table
from program.settings.shared import kubeconfig, log_format, log_level, metrics_bind_address

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


TABLE = Table(Configuration, conflicts)
