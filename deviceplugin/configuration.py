"""Every setting of the daemon, each declared once: flags, readers, `--print-config` and the manual derive from here."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

from deviceplugin.container.edits import DeviceListStrategy
from deviceplugin.settings import (
    Feedback,
    HamiScheduler,
    KubeletSettings,
    RemediationSettings,
    Remedy,
    RequestedAllocation,
    RequestedLimits,
    TaintWhen,
    TotalNames,
    UnenforcedShares,
)
from program.address import ListenAddress
from program.settings.declared import Setting, Table, part, setting
from program.settings.kinds import (
    NAMESPACED,
    OPTIONAL_ADDRESS,
    Number,
    Seconds,
    Several,
    Switch,
    Text,
    Whole,
    Words,
    dns_name,
    path,
    words_of,
)
from program.settings.shared import resource_names

_NO_DYNAMIC_MIG = (
    "this daemon does not create MIG devices on demand; to share MIG devices that exist already, set mig_strategy"
)
_GPU_UUID = Text(expected="the UUID of a GPU", pattern=r"[A-Za-z0-9-]+")
_MANY = 1_000_000

_CHART = "devicePlugin.settings.{key}"
_node = partial(setting, group="Node", chart=_CHART)
_request = partial(setting, group="What pods ask for", chart=_CHART)
_share = partial(setting, group="How GPUs are shared", chart=_CHART)
_container = partial(setting, group="What containers get", chart=_CHART)
_health = partial(setting, group="Health and remediation", chart=_CHART)
_of_health = partial(Setting, group="Health and remediation", chart=_CHART)
_observe = partial(setting, group="Metrics and logs", chart=_CHART)
_RESOURCES = resource_names(group="What pods ask for")


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The effective value of every setting."""

    node_name: str = _node(
        "",
        dns_name("the name of a Node"),
        "The Node object of this machine. There is no default.",
        chart="",
        by_node=False,
        needed_as="the name of this node",
    )
    kubeconfig: str = _node(
        "",
        path(optional=True),
        "How the API server is reached. Empty: KUBECONFIG, ~/.kube/config, or the cluster around us.",
        environment=(),
        chart="",
        by_node=False,
    )
    kubelet: KubeletSettings = part(
        KubeletSettings,
        root=Setting(
            kind=path(),
            help="Kubelet's folder; its sockets are in device-plugins below it.",
            key="kubelet_root",
            group="Node",
        ),
        resource_name=_RESOURCES["count"],
        numa_hints=Setting(
            kind=Switch(),
            help="Tell kubelet the NUMA node of each GPU, for its topology manager.",
            key="enable_numa_topology",
            group="How GPUs are shared",
            chart=_CHART,
            device_config="nvidia.enableNumaTopology",
            node_config="enablenumatopology",
        ),
    )
    total_names: TotalNames = part(TotalNames, **{name: each for name, each in _RESOURCES.items() if name != "count"})
    nvml_library: str = _node("", path(optional=True), "Load this library instead of libnvidia-ml.so.1.", chart="")
    sysfs_root: str = _node("/sys", path(), "The folder from which NUMA nodes and PCI devices are read.", chart="")
    proc_root: str = _node("/proc", path(), "The folder from which processes and their containers are read.", chart="")
    dev_root: str = _node(
        "/",
        path(absolute=True),
        "The host's folder above `dev`, which has the GPUs' device files.",
        environment=("DEV_ROOT", "NVIDIA_DEV_ROOT"),
        flags=("--dev-root", "--nvidia-dev-root"),
        device_config="flags.nvidiaDevRoot",
    )
    driver_root: str = _node(
        "",
        path(absolute=True, optional=True),
        "The host's folder below which the NVIDIA driver is installed: /, /run/nvidia/driver of the GPU Operator's "
        "driver container, /home/kubernetes/bin/nvidia of GKE. NVML is loaded from there. Empty: NVIDIA's container "
        "runtime adds it to this process.",
        chart="devicePlugin.driver.root",
    )
    container_driver_root: str = _node(
        "",
        path(absolute=True, optional=True),
        "Where this process sees driver_root. Empty: at the same path.",
        chart="",
    )
    cgroup_root: str = _node(
        "/sys/fs/cgroup",
        path(absolute=True),
        "The folder of the host's control groups. They show when the containers of a pod that was deleted by force "
        "have ended. It may be missing.",
        chart="",
    )
    cri_socket: str = _node(
        "/run/containerd/containerd.sock",
        path(absolute=True),
        "The socket of containerd. The daemon asks once at the start whether containerd applies CDI devices; only "
        "containerd 1.7 to 2.2 need this. It may be missing.",
        chart="",
    )
    nvidia_runtime_config: str = _node(
        "/etc/nvidia-container-runtime/config.toml",
        path(absolute=True),
        "The configuration of NVIDIA's container runtime, which doctor reads. It may be missing.",
        chart="",
    )
    allocation: RequestedAllocation = _request(
        RequestedAllocation.AUTO,
        words_of(RequestedAllocation),
        "How the plugin determines which pod an Allocate call belongs to. With slots, kubelet proves it when a "
        "container starts, without a node lock. This needs kubelet 1.29, and CRI-O 1.31.11, 1.32.7, 1.33.3 or 1.34, or "
        "containerd 2.3 (or 1.7 with enable_cdi). With immediate, it is the pod of the node lock, or the only one that "
        "waits. With auto, the daemon takes slots where the node is known to support them.",
    )
    node_totals: bool = _request(
        True,
        Switch(),
        "The Node's capacity has totals of the resources for memory, cores and priority. Off: the daemon removes them. "
        "Then, if a DeviceClass exists for the resource of GPUs, kube-scheduler refuses pods that ask for them.",
    )
    feature_labels: bool = _request(
        False,
        Switch(),
        "The Node has labels of its GPUs in the names of NVIDIA's GPU feature discovery (nvidia.com/gpu.product and "
        "so on). If another program writes any of them, the daemon writes none. Off: the daemon removes those that it "
        "wrote.",
    )
    hami_handshake: HamiScheduler = _request(
        HamiScheduler.NONE,
        words_of(HamiScheduler),
        "The oldest HAMi scheduler that must understand this node. 2.4: registers as text of 7 fields and reports "
        "every 30 s; 2.7: 9 fields, every 30 s; 2.9: JSON, one report after each change.",
    )
    device_split_count: int = _share(
        10,
        Whole(minimum=1, maximum=1000),
        "How many containers may share one GPU.",
        device_config="nvidia.deviceSplitCount",
        node_config="devicesplitcount",
    )
    device_memory_scaling: float = _share(
        1.0,
        Number(above=0, maximum=100),
        "Advertised memory of a GPU as a multiple of what it has. Above 1 it is promised more than once: there is no "
        "virtual memory, and what containers use beyond the GPU's own memory fails.",
        device_config="nvidia.deviceMemoryScaling",
        node_config="devicememoryscaling",
    )
    device_cores_scaling: float = _share(
        1.0,
        Number(above=0, maximum=100),
        "Advertised cores of a GPU as a multiple of 100 %.",
        device_config="nvidia.deviceCoreScaling",
        node_config="devicecorescaling",
    )
    preconfigured_device_memory: int = _share(
        0,
        Whole(minimum=0, maximum=2**31 - 1),
        "Memory of GPUs for which the driver reports none. 0: such GPUs are not shared.",
        unit="MiB",
        device_config="nvidia.preConfiguredDeviceMemory",
        node_config="preconfigureddevicememory",
    )
    operating_mode: Literal["hami-core", "mps"] = _share(
        "hami-core",
        Words(words=("hami-core", "mps"), refusals={"mig": _NO_DYNAMIC_MIG}),
        "The sharing mode that is registered for every GPU, and that pods may ask for.",
        node_config="operatingmode",
    )
    mig_strategy: Literal["none", "single", "mixed"] = _share(
        "none",
        Words(words=("none", "single", "mixed")),
        "How MIG devices that exist on the GPUs are offered: not at all, under the resource name, or by profile.",
        device_config="flags.migStrategy",
        node_config="migstrategy",
    )
    filter_uuids: tuple[str, ...] = _share(
        (), Several(of=_GPU_UUID), "UUIDs of GPUs that are not shared.", node_config="filterdevices.uuid"
    )
    filter_indices: tuple[int, ...] = _share(
        (),
        Several(of=Whole(minimum=0, maximum=_MANY)),
        "Indices of GPUs that are not shared.",
        node_config="filterdevices.index",
    )
    limits: RequestedLimits = _share(
        RequestedLimits.AUTO,
        words_of(RequestedLimits),
        "What holds containers that start from now on to their parts of GPUs. driver: NVIDIA's driver, which holds "
        "memory and no cores; it needs release 615, control groups of version 2 and allocation by slots. hami-core: "
        "HAMi-core, where it is installed. auto: each of both that is there; then the driver holds memory, and "
        "HAMi-core cores. none: nothing.",
    )
    unenforced_shares: UnenforcedShares = _share(
        UnenforcedShares.REFUSE,
        words_of(UnenforcedShares),
        "Whether the node gives out parts of GPUs to which nothing holds a container for sure: without HAMi-core and "
        "limits of the driver all of them, with HAMi-core alone those of several GPUs in one container. refuse: it "
        "does not. allow: it does, and a container can use all of its GPUs.",
    )
    feedback: Feedback = _share(
        Feedback.OFF,
        words_of(Feedback),
        "What the daemon makes GPU tasks do through HAMi-core, every 5 s. off: nothing; the resource for priority has "
        "no effect. priority: they wait while a container of higher priority (0 before 1) computes on their GPU. "
        "contention: also, as with HAMi's monitor, their limits of cores hold only while others compute there.",
    )
    disable_core_limit: bool = _share(
        False,
        Switch(),
        "HAMi-core does not hold containers to their share of a GPU's cores.",
        device_config="nvidia.disableCoreLimit",
    )
    device_list_strategy: tuple[DeviceListStrategy, ...] = _container(
        (DeviceListStrategy.ENVVAR,),
        Several(of=words_of(DeviceListStrategy), at_least=1),
        "How the container runtime learns the GPUs: envvar, volume-mounts, cdi-annotations, cdi-cri, or several; or "
        "driver-files: the files of the driver below driver_root and the GPUs' device files, for runtimes without "
        "NVIDIA's toolkit.",
        device_config="flags.plugin.deviceListStrategy",
    )
    pass_device_specs: bool = _container(
        False,
        Switch(),
        "Also give kubelet the GPUs' device files, for runtimes that do not add them.",
        device_config="flags.plugin.passDeviceSpecs",
    )
    imex_channel_ids: tuple[int, ...] = _container(
        (),
        Several(of=Whole(minimum=0, maximum=0)),
        "IMEX channels every container gets: none, or channel 0.",
        device_config="imex.channelIDs",
    )
    gdrcopy_enabled: bool = _container(False, Switch(), "Containers get GDRCopy.", device_config="flags.gdrcopyEnabled")
    gds_enabled: bool = _container(
        False, Switch(), "Containers get GPUDirect Storage.", device_config="flags.gdsEnabled"
    )
    mofed_enabled: bool = _container(
        False, Switch(), "Containers get the devices of MOFED.", device_config="flags.mofedEnabled"
    )
    cdi_kind: str = _container(
        "k8s.device-plugin.nvidia.com/gpu",
        Text(expected="vendor/class", pattern=r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?/[A-Za-z0-9][-A-Za-z0-9_]*"),
        "Vendor and class of the GPUs' CDI names.",
    )
    cdi_directory: str = _container(
        "/var/run/cdi",
        path(absolute=True),
        "The folder for the CDI specs of slots; the container runtime must read it.",
        chart="devicePlugin.cdiDirectory",
        by_node=False,
    )
    hook_path: str = _container(
        "/usr/local",
        path(absolute=True),
        "HAMi-core is in the folder vgpu below this one; without it no container gets it.",
        chart="hamiCore.hookPath",
    )
    libcuda_log_level: str = _container(
        "1",
        Words(words=("", "0", "1", "2", "3", "4")),
        "How much HAMi-core prints inside containers: 0 and 1 errors, 2 also warnings, 3 also information, 4 all. "
        "Empty leaves it to HAMi-core.",
        device_config="nvidia.libCudaLogLevel",
        node_config="libcudaloglevel",
    )
    disable_health_checks: tuple[str, ...] = _health(
        (),
        Several(of=Text(expected="an XID, all, xids or fabric", pattern="[0-9]{1,9}|(?i:all|xids|fabric)")),
        "XIDs that leave a GPU healthy, besides those of applications. xids: all of them. fabric: also a GPU that is "
        "not registered with its NVLink fabric is healthy. all: no health checks.",
        environment=("DP_DISABLE_HEALTHCHECKS",),
    )
    enable_health_checks: tuple[str, ...] = _health(
        (),
        Several(of=Text(expected="an XID or all", pattern="[0-9]{1,9}|(?i:all)")),
        "XIDs that make a GPU unhealthy although they are disabled otherwise. all: every XID.",
        environment=("DP_ENABLE_HEALTHCHECKS",),
    )
    health_recovery_seconds: float = _health(
        60.0, Number(maximum=_MANY), "How long a GPU must have no fault before it is healthy again.", unit="s"
    )
    remediation: RemediationSettings = part(
        RemediationSettings,
        remedy=_of_health(
            kind=words_of(Remedy),
            help="What is done about GPUs that stay unhealthy. report: the Node's condition TopoGPUHealthy says so. "
            "evict-waiting: also pods that wait for such a GPU are evicted. evict: also those that run on one.",
            key="remediation",
        ),
        taint=_of_health(
            kind=words_of(TaintWhen),
            help="The Node gets the taint topogpu.io/gpu-unhealthy:NoSchedule while all or any of its GPUs stay "
            "unhealthy.",
            key="remediation_taint",
        ),
        after=_of_health(
            kind=Seconds(of=Number(above=0, maximum=_MANY)),
            help="How long a GPU must have been unhealthy before anything is done about it. For evictions while most "
            "GPUs of the node are unhealthy, for example when the driver fails, six times as long.",
            key="remediation_seconds",
            unit="s",
        ),
        cluster_per_hour=_of_health(
            kind=Whole(minimum=1, maximum=1000),
            help="Pods that the daemons of all nodes together may evict within an hour.",
            key="remediation_evictions_per_hour",
        ),
        lease=_of_health(
            kind=NAMESPACED,
            help="The Lease on which the daemons of all nodes count their evictions. Without it no pod is evicted.",
            key="remediation_lease",
            chart="",
        ),
    )
    metrics_bind_address: ListenAddress | None = _observe(
        ListenAddress(host=None, port=9394),
        OPTIONAL_ADDRESS,
        "The address of /metrics, /healthz and /readyz. Empty: they are not served.",
        chart="",
    )
    read_seconds: float = _observe(
        30.0, Number(above=0, maximum=_MANY), "Time between two readings of the GPUs.", unit="s"
    )
    log_format: str = _observe("text", Words(words=("text", "json")), "Log lines for people or for programs.")
    log_level: str = _observe(
        "info", Words(words=("debug", "info", "warning", "error")), "The least severe messages that are logged."
    )


def conflicts(configuration: Configuration) -> Iterator[str]:
    """Yields the conflicts between settings, one sentence each."""
    strategies = configuration.device_list_strategy
    if DeviceListStrategy.DRIVER_FILES not in strategies:
        return
    if len(strategies) > 1:
        yield f"device_list_strategy is {', '.join(strategies)}; driver-files goes with no other"
    if not configuration.driver_root:
        yield "device_list_strategy is driver-files, which needs driver_root: where the host has the NVIDIA driver"
    for key in ("gdrcopy_enabled", "gds_enabled", "mofed_enabled"):
        if getattr(configuration, key):
            yield f"{key} is true, which needs NVIDIA's container toolkit; device_list_strategy is driver-files"


TABLE = Table(Configuration, conflicts)
