"""The table of the daemon's settings: flags, readers, `--print-config` and the manual derive from it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from deviceplugin.configuration import CHART, NODE, OBSERVATION, of_containers, of_sharing
from deviceplugin.configuration import CONTAINERS as CONTAINERS_HEADING
from deviceplugin.configuration import SHARING as SHARING_HEADING
from deviceplugin.configuration.health import HEALTH, REMEDIATION
from deviceplugin.configuration.node import AGENT, HOST, KUBELET, TOTAL_NAMES
from deviceplugin.configuration.sharing import SHARING
from deviceplugin.container.edits import AllocationSettings, DeviceListStrategy, DriverFeature
from deviceplugin.health.step import HealthSettings
from deviceplugin.machine.discovery import NodeSharing
from deviceplugin.settings import (
    AgentSettings,
    HostSettings,
    KubeletSettings,
    RemediationSettings,
    TotalNames,
)
from program.address import ListenAddress
from program.settings.declared import Alias, Table, item, part, setting
from program.settings.kinds import Kind, Several, Switch, Whole, Words, words_of
from program.settings.shared import kubeconfig, log_format, log_level, metrics_bind_address
from proto.annotations.node_limits import Backend


def _feature(word: str, flag: str, kind: Kind | None = None, **files: str) -> Alias:
    """Returns another name of the feature, with flag and variable."""
    variable = flag.upper().replace("-", "_")
    return item(word, kind or Switch(), environment=variable, flags=(f"--{flag}",), **files)


_DEVICE_FILES, _LABELS, _NUMA, _SUMS = "device-files", "gpu-labels", "numa", "gpu-sums"


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
    libcuda_log_level=of_containers(
        kind=Words(words=("", "0", "1", "2", "3", "4")),
        help="How much HAMi-core prints inside containers: 0 and 1 errors, 2 also warnings, 3 also information, 4 all. "
        "Empty leaves it to HAMi-core.",
        device_config="nvidia.libCudaLogLevel",
        node_config="libcudaloglevel",
    ),
)


_FEATURES: Any = setting(
    (),
    Several(of=Words(words=(*DriverFeature, _DEVICE_FILES, _LABELS, _NUMA, _SUMS))),
    "What is switched on. Every container gets gdrcopy, gds (GPUDirect Storage), the devices of mofed, and imex: IMEX "
    "channel 0. device-files: kubelet also gets the GPUs' device files, for runtimes that do not add them. gpu-labels: "
    "the Node has labels of its GPUs in the names of NVIDIA's GPU feature discovery. "
    "numa: kubelet gets the NUMA node of each GPU, for its Topology Manager, also where kubelet_config does not "
    "show that it has one. gpu-sums: the Node's capacity has what its GPUs have together, topogpu.io/total-gpumem and "
    "topogpu.io/total-gpucores; the webhook needs the same.",
    group=CONTAINERS_HEADING,
    chart=CHART,
    aliases=(
        _feature(DriverFeature.GDRCOPY, "gdrcopy-enabled", device_config="flags.gdrcopyEnabled"),
        _feature(DriverFeature.GDS, "gds-enabled", device_config="flags.gdsEnabled"),
        _feature(DriverFeature.MOFED, "mofed-enabled", device_config="flags.mofedEnabled"),
        _feature(
            *(DriverFeature.IMEX, "imex-channel-ids", Several(of=Whole(minimum=0, maximum=0))),
            device_config="imex.channelIDs",
        ),
        _feature(_DEVICE_FILES, "pass-device-specs", device_config="flags.plugin.passDeviceSpecs"),
        _feature(
            *(_NUMA, "enable-numa-topology"),
            device_config="nvidia.enableNumaTopology",
            node_config="enablenumatopology",
        ),
    ),
)
_UNENFORCED = "unenforced"
_LIMITS: Any = setting(
    tuple(map(str, Backend)),
    Several(
        of=Words(words=(*Backend, _UNENFORCED), refusals={"auto": "leave it out, or write [driver, hami-core]"}),
        none="none",
    ),
    "What holds containers that start from now on to their parts of GPUs, as far as it is there. driver: NVIDIA's "
    "driver from release 615 on, which holds no cores. hami-core: HAMi-core; beside the driver it holds cores alone. "
    "With unenforced the node also gives out parts to which nothing holds a container for sure: it can use all of its "
    "GPUs. none: only whole GPUs are given out.",
    group=SHARING_HEADING,
    chart=CHART,
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
    features: tuple[str, ...] = _FEATURES
    limits: tuple[str, ...] = _LIMITS
    containers: AllocationSettings = CONTAINERS
    health: HealthSettings = HEALTH
    remediation: RemediationSettings = REMEDIATION
    metrics_bind_address: ListenAddress | None = _METRICS_ADDRESS
    log_format: str = log_format(group=OBSERVATION, chart=CHART)
    log_level: str = log_level(group=OBSERVATION, chart=CHART)


def _completed(configuration: Configuration) -> Configuration:
    """Returns the configuration with the features in the parts that have them."""
    on = configuration.features
    of_driver = tuple(map(DriverFeature, (each for each in on if each in set(DriverFeature))))
    return replace(
        configuration,
        agent=replace(
            configuration.agent,
            feature_labels=_LABELS in on,
            gpu_sums=_SUMS in on,
            limits=frozenset(Backend(each) for each in configuration.limits if each != _UNENFORCED),
            allows_unheld=_UNENFORCED in configuration.limits,
        ),
        kubelet=replace(configuration.kubelet, numa_hints=_NUMA in on),
        containers=replace(configuration.containers, features=of_driver, pass_device_specs=_DEVICE_FILES in on),
        health=replace(configuration.health, recovery_seconds=configuration.remediation.recovery_seconds),
    )


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
    completed=_completed,
)
