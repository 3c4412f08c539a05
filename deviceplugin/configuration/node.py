"""Settings of the node and its daemon: the host's folders, kubelet, names of resources, what the Node shows."""

from typing import Any

from deviceplugin.configuration import (
    CHART,
    MANY,
    OBSERVATION,
    REQUESTS,
    of_containers,
    of_node,
    of_requests,
    of_sharing,
)
from deviceplugin.settings import (
    AgentSettings,
    Feedback,
    HamiScheduler,
    HostSettings,
    KubeletSettings,
    RequestedAllocation,
    TotalNames,
)
from program.settings.declared import Setting, part
from program.settings.kinds import Number, dns_name, path, words_of
from program.settings.shared import resource_names

_RESOURCES = resource_names(group=REQUESTS)

HOST: Any = part(
    HostSettings,
    root=of_node(
        kind=path(absolute=True),
        help="Where the host's folders are mounted. Below it the daemon looks for the driver, sys, proc, control "
        "groups, containerd's socket and NVIDIA's configuration. What is missing there is read at its own path.",
        key="host_root",
    ),
    driver_root=of_node(
        kind=path(absolute=True, optional=True),
        help="The host's folder below which the NVIDIA driver is installed: /, /run/nvidia/driver of the GPU "
        "Operator's driver container, /home/kubernetes/bin/nvidia of GKE. NVML is loaded from there. Empty: NVIDIA's "
        "container runtime adds it to this process.",
        chart="devicePlugin.driver.root",
    ),
    dev_root=of_node(
        kind=path(absolute=True),
        help="The host's folder above `dev`, which has the GPUs' device files.",
        environment=("DEV_ROOT", "NVIDIA_DEV_ROOT"),
        flags=("--dev-root", "--nvidia-dev-root"),
        device_config="flags.nvidiaDevRoot",
        chart=CHART,
    ),
    nvml_library=of_node(kind=path(optional=True), help="Load this library instead of libnvidia-ml.so.1."),
)

KUBELET: Any = part(
    KubeletSettings,
    root=of_node(kind=path(), help="Kubelet's folder; its sockets are in device-plugins below it.", key="kubelet_root"),
    resource_name=_RESOURCES["count"],
    configuration=of_node(
        kind=path(absolute=True, optional=True),
        help="The host's file with kubelet's configuration, below host_root or at its own path, from which the daemon "
        "reads kubelet's Topology Manager and CPU manager. Drop-in folders follow it behind commas. Empty, or "
        "without the file: unknown.",
        key="kubelet_config",
        chart="devicePlugin.kubeletConfig",
    ),
)

TOTAL_NAMES: Any = part(TotalNames, **{name: each for name, each in _RESOURCES.items() if name != "count"})

AGENT: Any = part(
    AgentSettings,
    node_name=of_node(
        kind=dns_name("the name of a Node"),
        help="The Node object of this machine.",
        by_node=False,
        needed_as="the name of this node",
    ),
    allocation=of_requests(
        kind=words_of(RequestedAllocation),
        help="How the plugin determines which pod an Allocate call belongs to. slots: kubelet proves it when a "
        "container starts, without a node lock. immediate: it is the pod of the node lock, or the only one that waits. "
        "auto: slots, where kubelet and container runtime are known to support them.",
    ),
    hami_scheduler=of_requests(
        kind=words_of(HamiScheduler),
        help="The oldest HAMi scheduler that must understand this node. 2.4: registers as text of 7 fields and reports "
        "every 30 s; 2.7: 9 fields, every 30 s; 2.9: JSON, one report after each change.",
        key="hami_handshake",
    ),
    feedback=of_sharing(
        kind=words_of(Feedback),
        help="What the daemon makes GPU tasks do through HAMi-core. off: nothing. priority: they wait while a "
        "container of higher priority computes on their GPU. contention: also, as with HAMi's monitor, their limits of "
        "cores hold only while others compute there.",
    ),
    cdi_directory=of_containers(
        kind=path(absolute=True),
        help="The folder for the CDI specs of slots; the container runtime must read it.",
        chart="devicePlugin.cdiDirectory",
        by_node=False,
    ),
    hook_path=of_containers(
        kind=path(absolute=True),
        help="HAMi-core is in the folder vgpu below this one; without it no container gets it.",
        chart="hamiCore.hookPath",
    ),
    read_seconds=Setting(
        kind=Number(above=0, maximum=MANY),
        help="Time between two readings of the GPUs.",
        unit="s",
        group=OBSERVATION,
        chart=CHART,
    ),
)
