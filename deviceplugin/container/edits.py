"""The edits that a container gets for the GPU shares decided for it.

Names and values of the environment are HAMi-core's and the NVIDIA container toolkit's, as HAMi's device plugin
v2.10 writes them (`getAllocateResponse` and its device-list strategies).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from deviceplugin.container.hami_core_names import CONTAINERS, LOCK_DIRECTORY, LOCKS, OVERRIDES
from proto.annotations.node_limits import Backend
from proto.devices import MIG_PREFIX, ContainerShares, Device, DeviceShare, DeviceUUID
from proto.environment import (
    BY_PCI_ADDRESS,
    CORE_LIMIT,
    CORE_POLICY,
    DEFAULT_CORE_POLICY,
    DEVICE_ORDER,
    DISABLE_CONTROL,
    DRIVER_HARD_LIMIT,
    DRIVER_SOFT_LIMIT,
    ENABLED,
    FEATURES,
    FORCED,
    IMEX_CHANNELS,
    MEMORY_LIMIT,
    REDIRECT,
    SHARED_CACHE,
    TASK_PRIORITY,
    VISIBLE_DEVICES,
    VOID,
    is_turned_off,
)
from proto.kubernetes.objects import Container, EnvVar
from proto.quantity import QuantityError, integer_quantity

CDI_KIND = "k8s.device-plugin.nvidia.com/gpu"
"""Vendor and class of the GPUs' CDI names, as NVIDIA's plugin has them."""
NO_RUNTIME_ENV = {VISIBLE_DEVICES: VOID, "TRITON_LIBCUDA_PATH": "/usr/lib64"}
"""The variables of containers that get the driver's files from us. Without the second, Triton's compiler looks for
CUDA's library in ldconfig's cache, which is not written (`libcuda_dirs` in triton-lang/triton,
third_party/nvidia/backend/driver.py).
"""
PRELOAD_LIST = "/etc/ld.so.preload"
"""Lists the libraries that the container's loader loads first."""
_OVERRIDING = (MEMORY_LIMIT, CORE_LIMIT, CORE_POLICY, SHARED_CACHE, REDIRECT, TASK_PRIORITY, DEVICE_ORDER)
"""The beginnings of the names of variables on which limits depend."""
_NO_LIMITS: Mapping[DeviceUUID, int] = MappingProxyType({})
_VOLUME_ROOT = "/var/run/nvidia-container-devices"
_CDI_ANNOTATION = "cdi.k8s.io/nvidia-device-plugin_"
_CDI_NAME_LIMIT = 63
"""Characters after the `/` of an annotation key; Kubernetes' rule, CDI's too."""


class DeviceListStrategy(StrEnum):
    """The ways in which the container runtime learns which GPUs to open; several may be active."""

    ENVVAR = "envvar"
    VOLUME_MOUNTS = "volume-mounts"
    CDI_ANNOTATIONS = "cdi-annotations"
    CDI_CRI = "cdi-cri"
    DRIVER_FILES = "driver-files"
    """The runtime is given no list, but the driver's files and the device files one by one."""


CDI_STRATEGIES = frozenset({DeviceListStrategy.CDI_ANNOTATIONS, DeviceListStrategy.CDI_CRI})


class DriverFeature(StrEnum):
    """Additions of the NVIDIA container toolkit to a container that requests them."""

    GDRCOPY = "gdrcopy"
    GDS = "gds"
    MOFED = "mofed"
    IMEX = "imex"
    """IMEX channel 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    container_path: str
    host_path: str
    read_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A device file, readable and writable, at `path` inside the container."""

    path: str
    host_path: str = ""
    """Empty when the host has it at the same path."""
    number: tuple[int, int] | None = None
    """Major and minor of the character device; None where it could not be seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEdits:
    env: Mapping[str, str]
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()
    """Fully qualified CDI names."""
    driver_mounts: tuple[Mount, ...] = ()
    """The driver's files, the same for every container of the node."""
    hooks: tuple[Mapping[str, Any], ...] = ()
    """Hooks of the container runtime, as CDI writes them."""
    driver_mib: Mapping[DeviceUUID, int] = field(default_factory=dict)
    """The memory to which the driver limits the container, for each of its GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HamiCore:
    """HAMi-core as installed on this node; paths are the host's."""

    root: str
    """The folder `vgpu` lies in, the same on the host and inside containers."""
    library: str
    """The versioned file, never a symbolic link that moves on with the next installation."""
    preload: str


@dataclass(frozen=True, slots=True)
class NoHamiCore:
    """Nothing enforces shares of GPUs. `problem` is the reason, as a clause."""

    problem: str
    is_damaged: bool = False
    """Part of an installation is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Facts of driver and node about the GPUs that are not advertised; MIG instances have their own entries."""

    pci_addresses: Mapping[DeviceUUID, str] = field(default_factory=dict)
    """Bus ids as NVML writes them, whose text sorts like the address. A MIG instance has that of its GPU."""
    control_nodes: tuple[DeviceNode, ...] = ()
    gpu_nodes: Mapping[DeviceUUID, tuple[DeviceNode, ...]] = field(default_factory=dict)
    driver_mounts: tuple[Mount, ...] = ()
    """The driver's files, where a setting names the folder of the host below which they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationSettings:
    strategies: tuple[DeviceListStrategy, ...] = (DeviceListStrategy.ENVVAR,)
    disable_core_limit: bool = False
    """HAMi-core enforces memory only."""
    libcuda_log_level: str = ""
    """HAMi-core's: 0 and 1 errors, 2 warnings, 3 info, 4 debug; empty leaves it to the library (2)."""
    pass_device_specs: bool = False
    """Name the device files to kubelet too, for runtimes without NVIDIA's hook."""
    features: tuple[DriverFeature, ...] = ()

    @property
    def imex_channels(self) -> tuple[int, ...]:
        return (0,) if DriverFeature.IMEX in self.features else ()

    @property
    def switched_on(self) -> tuple[DriverFeature, ...]:
        """Returns the features that the toolkit has a switch for."""
        return tuple(feature for feature in self.features if feature is not DriverFeature.IMEX)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerFacts:
    pod_uid: str
    name: str
    env: tuple[EnvVar, ...] = ()
    """The pod's own environment for this container."""
    priority: int | None = None
    """The priority of its GPU tasks: 0 is high, 1 yields to it."""
    has_run: bool = False
    """The container is being restarted."""
    held_before: frozenset[Backend] = frozenset()
    """The backends with which it has run."""


def container_facts(pod_uid: str, container: Container, resource_priority: str) -> ContainerFacts:
    """Returns the facts about a container on which its edits depend, from its pod's spec."""
    return ContainerFacts(
        pod_uid=pod_uid,
        name=container.name,
        env=tuple(container.env),
        priority=_priority(container, resource_priority),
    )


def container_edits(
    shares: ContainerShares,
    inventory: Mapping[DeviceUUID, Device],
    container: ContainerFacts,
    settings: AllocationSettings,
    hami_core: HamiCore | None,
    *,
    hardware: Hardware | None = None,
    driver_mib: Mapping[DeviceUUID, int] = _NO_LIMITS,
) -> ContainerEdits:
    """Returns the edits for one container. Every share's GPU must be in `inventory`.

    GPUs are listed by PCI address, and CUDA_DEVICE_ORDER makes CUDA do the same: HAMi-core applies limit i to CUDA's
    i-th GPU, whatever order the annotation has. Without `hami_core`, as for whole GPUs, the limits are still written,
    for programs that read them. `driver_mib` is the memory to which the driver limits the container: then HAMi-core
    gets no limits of memory.
    """
    hardware = hardware or Hardware()
    ordered = _by_address(shares, inventory, hardware)
    uuids = tuple(share.uuid for share in ordered)
    env: dict[str, str] = {}
    mounts: tuple[Mount, ...] = ()
    limited = [share for share in ordered if not _is_mig(share.uuid)]
    if limited:
        env |= _core_env(limited, inventory, container, settings)
    if hami_core is not None:
        env |= {name: value for name, value in _hami_core_env(hami_core, container).items() if name not in env}
        if driver_mib:
            env = {name: value for name, value in env.items() if not name.startswith(MEMORY_LIMIT)}
        mounts += _hami_core_mounts(hami_core, container)
    names = cdi_names(uuids, settings)
    chosen = frozenset(settings.strategies)
    return ContainerEdits(
        env={**env, **_driver_env(driver_mib), **_device_env(uuids, settings)},
        mounts=mounts + (_volumes(uuids, settings) if DeviceListStrategy.VOLUME_MOUNTS in chosen else ()),
        devices=_device_nodes(uuids, hardware) if _names_device_files(settings) else (),
        annotations=(
            {_cdi_annotation_key(container): ",".join(names)} if DeviceListStrategy.CDI_ANNOTATIONS in chosen else {}
        ),
        cdi_devices=names if DeviceListStrategy.CDI_CRI in chosen else (),
        driver_mounts=hardware.driver_mounts if DeviceListStrategy.DRIVER_FILES in chosen else (),
        driver_mib=driver_mib,
    )


def cdi_names(uuids: Sequence[DeviceUUID], settings: AllocationSettings) -> tuple[str, ...]:
    """Returns the fully qualified CDI names for these GPUs, and for the IMEX channels and features of the settings."""
    vendor = CDI_KIND.partition("/")[0]
    return (
        *(f"{CDI_KIND}={uuid}" for uuid in uuids),
        *(f"{vendor}/imex-channel={channel}" for channel in settings.imex_channels),
        *(f"{vendor}/{feature}=all" for feature in settings.switched_on),
    )


def cache_directory(hami_core_root: str, container: ContainerFacts) -> str:
    """Returns the host folder of the container's HAMi-core region; vGPUmonitor takes UID and name from it."""
    return f"{hami_core_root}/vgpu/{CONTAINERS}/{container.pod_uid}_{container.name}"


def lock_directory(hami_core_root: str, container: ContainerFacts) -> str:
    """Returns the host folder of the lock file by which HAMi-core's processes take turns.

    Each container has its own. HAMi's plugin has one for the node, which any container can block for all others.
    HAMi-core since March 2026 takes turns by a semaphore in the container's region, so no longer across containers
    either (sem_postinit in multiprocess_memory_limit.c of Project-HAMi/HAMi-core).
    """
    return f"{hami_core_root}/vgpu/{LOCKS}/{container.pod_uid}_{container.name}"


def override_file(hami_core_root: str, container: ContainerFacts) -> str:
    """Returns the host's file with the container's `override_text`, in a folder that its tenant cannot write."""
    return f"{hami_core_root}/vgpu/{OVERRIDES}/{container.pod_uid}_{container.name}/overrideEnv"


def override_text(env: Mapping[str, str]) -> str:
    """Returns the limits of a container, a line `NAME=value` each, for its processes that lack its environment, as
    those of sudo, ssh and cron.

    HAMi-core since October 2026 reads it before its limits, and sets each variable whatever the process has
    (`initialized` and `load_env_from_file` in multiprocess_memory_limit.c of Project-HAMi/HAMi-core). Before that it
    read the file too late to matter.
    """
    return "".join(f"{name}={value}\n" for name, value in env.items() if name.startswith(_OVERRIDING))


def _is_mig(uuid: DeviceUUID) -> bool:
    return uuid.startswith(MIG_PREFIX)


def _priority(container: Container, resource: str) -> int | None:
    try:
        return integer_quantity(container.resources.limits[resource])
    except (KeyError, QuantityError):
        # The API server takes whole numbers only for such a resource: there is no other value to answer for.
        return None


def _by_address(
    shares: ContainerShares, inventory: Mapping[DeviceUUID, Device], hardware: Hardware
) -> tuple[DeviceShare, ...]:
    """Sorts by PCI address. NVML's index follows it in known drivers, but its documentation promises no order."""
    addresses = hardware.pci_addresses
    known = all(share.uuid in addresses for share in shares)
    return tuple(
        sorted(shares, key=lambda share: (addresses[share.uuid] if known else "", inventory[share.uuid].index))
    )


def _core_env(
    limited: Sequence[DeviceShare],
    inventory: Mapping[DeviceUUID, Device],
    container: ContainerFacts,
    settings: AllocationSettings,
) -> Mapping[str, str]:
    env = dict(_limits(limited, inventory))
    if len(limited) > 1:
        # CUDA's own order is the fastest GPU first, which differs where a node has several models.
        env[DEVICE_ORDER] = BY_PCI_ADDRESS
    if settings.disable_core_limit:
        env[CORE_POLICY] = "disable"
    if settings.libcuda_log_level:
        env["LIBCUDA_LOG_LEVEL"] = settings.libcuda_log_level
    if container.priority is not None:
        # HAMi's webhook writes the same; here it also holds for pods that passed by no webhook.
        env[TASK_PRIORITY] = str(container.priority)
    return env


def _limits(shares: Sequence[DeviceShare], inventory: Mapping[DeviceUUID, Device]) -> Mapping[str, str]:
    limits = {
        # 0 would mean "no limit" to HAMi-core; the whole GPU is what a share without a size means.
        f"{MEMORY_LIMIT}_{position}": f"{share.memory_mib or inventory[share.uuid].memory_mib}m"
        for position, share in enumerate(shares)
    }
    # HAMi-core before April 2026 throttles every GPU by the first one's value and reads only this name.
    limits[CORE_LIMIT] = str(shares[0].cores)
    return limits | {f"{CORE_LIMIT}_{position}": str(share.cores) for position, share in enumerate(shares)}


def _driver_env(limits_mib: Mapping[DeviceUUID, int]) -> Mapping[str, str]:
    """Returns the variables for the hook of NVIDIA's toolkit, which has one limit for all GPUs of a container: the
    smallest. Its runtime runs that hook behind ours, and those of an image would set any limit.
    """
    return {DRIVER_SOFT_LIMIT: "0", DRIVER_HARD_LIMIT: str(min(limits_mib.values()))} if limits_mib else {}


def _hami_core_env(hami_core: HamiCore, container: ContainerFacts) -> Mapping[str, str]:
    """Includes what HAMi-core would do without: a slot's values replace those of ConfigMaps and images."""
    forced = any((variable.name, variable.value) == (CORE_POLICY, FORCED) for variable in container.env)
    return {
        SHARED_CACHE: f"{hami_core.root}/vgpu/{container.pod_uid}.cache",
        REDIRECT: f"{hami_core.root}/vgpu/libvgpu.so",
        DEVICE_ORDER: BY_PCI_ADDRESS,
        CORE_POLICY: FORCED if forced else DEFAULT_CORE_POLICY,
        **({} if is_turned_off(container.env) else {DISABLE_CONTROL: "false"}),
    }


def _hami_core_mounts(hami_core: HamiCore, container: ContainerFacts) -> tuple[Mount, ...]:
    inside = f"{hami_core.root}/vgpu"
    mounts = [
        Mount(container_path=f"{inside}/libvgpu.so", host_path=hami_core.library, read_only=True),
        Mount(container_path=inside, host_path=cache_directory(hami_core.root, container), read_only=False),
        Mount(container_path=LOCK_DIRECTORY, host_path=lock_directory(hami_core.root, container), read_only=False),
    ]
    if not is_turned_off(container.env):
        override = override_file(hami_core.root, container)
        mounts += [
            Mount(container_path=PRELOAD_LIST, host_path=hami_core.preload, read_only=True),
            Mount(container_path="/overrideEnv", host_path=override, read_only=True),
        ]
    return tuple(mounts)


def _device_env(uuids: Sequence[DeviceUUID], settings: AllocationSettings) -> Mapping[str, str]:
    """Returns the variables that name the GPUs. With CDI alone NVIDIA's runtime is to do nothing: the specs name
    everything, and an image may request all GPUs of it.
    """
    chosen = settings.strategies
    if DeviceListStrategy.DRIVER_FILES in chosen:
        return NO_RUNTIME_ENV
    if CDI_STRATEGIES.issuperset(chosen):
        return {VISIBLE_DEVICES: VOID}
    by_variable = DeviceListStrategy.ENVVAR in chosen
    channels = ",".join(map(str, settings.imex_channels)) if by_variable else ""
    return {
        **FEATURES,
        **{f"NVIDIA_{feature.upper()}": ENABLED for feature in settings.switched_on},
        **({IMEX_CHANNELS: channels} if channels else {}),
        VISIBLE_DEVICES: ",".join(uuids) if by_variable else _VOLUME_ROOT,
    }


def _volumes(uuids: Sequence[DeviceUUID], settings: AllocationSettings) -> tuple[Mount, ...]:
    names = (*uuids, *(f"imex/{channel}" for channel in settings.imex_channels))
    return tuple(
        Mount(container_path=f"{_VOLUME_ROOT}/{name}", host_path="/dev/null", read_only=False) for name in names
    )


def _names_device_files(settings: AllocationSettings) -> bool:
    chosen = frozenset(settings.strategies)
    return DeviceListStrategy.DRIVER_FILES in chosen or (settings.pass_device_specs and bool(chosen - CDI_STRATEGIES))


def _device_nodes(uuids: Sequence[DeviceUUID], hardware: Hardware) -> tuple[DeviceNode, ...]:
    """Returns each device file once: MIG instances of one GPU share its file."""
    own = (node for uuid in uuids for node in hardware.gpu_nodes.get(uuid, ()))
    return tuple(dict.fromkeys((*hardware.control_nodes, *own)))


def _cdi_annotation_key(container: ContainerFacts) -> str:
    room = _CDI_NAME_LIMIT - len(_CDI_ANNOTATION.partition("/")[2])
    return _CDI_ANNOTATION + f"{container.pod_uid}_{container.name}"[:room].rstrip("-_.")
