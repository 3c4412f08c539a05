"""What a container is given for the GPU shares decided for it.

Names and values of the environment are HAMi-core's and the NVIDIA container toolkit's, as HAMi's device plugin
v2.10 writes them (`getAllocateResponse` and its device-list strategies).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from proto.devices import ContainerShares, Device, DeviceShare, DeviceUUID

DEFAULT_HOOK_PATH = "/usr/local"
CONTROL_SWITCH = "CUDA_DISABLE_CONTROL"
_GO_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_VOLUME_ROOT = "/var/run/nvidia-container-devices"
_CDI_ANNOTATION = "cdi.k8s.io/nvidia-device-plugin_"
_CDI_NAME_LIMIT = 63
"""Characters after the `/` of an annotation key; Kubernetes' rule, CDI's too."""


class DeviceListStrategy(StrEnum):
    """How the container runtime learns which GPUs to open; several may be active."""

    ENVVAR = "envvar"
    VOLUME_MOUNTS = "volume-mounts"
    CDI_ANNOTATIONS = "cdi-annotations"
    CDI_CRI = "cdi-cri"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    container_path: str
    host_path: str
    read_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A device file, readable and writable, at the same path inside the container."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEdits:
    env: Mapping[str, str]
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()
    """Fully qualified CDI names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """HAMi-core as installed on this node; paths are the host's."""

    root: str
    """The folder `vgpu` lies in, the same on the host and inside containers."""
    library: str
    preload: str
    license: str = ""
    """Empty when this build of the library has none; else its validator lies beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationSettings:
    strategies: tuple[DeviceListStrategy, ...] = (DeviceListStrategy.ENVVAR,)
    cdi_kind: str = "k8s.device-plugin.nvidia.com/gpu"
    oversubscribed: bool = False
    """More memory is advertised than the GPUs have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerFacts:
    pod_uid: str
    name: str
    env: Mapping[str, str] = field(default_factory=dict)
    """The literal values of the pod's own environment for this container."""


def container_edits(
    shares: ContainerShares,
    inventory: Mapping[DeviceUUID, Device],
    container: ContainerFacts,
    settings: AllocationSettings,
    hook: Hook | None,
) -> ContainerEdits:
    """The edits for one container. Every share's GPU must be in `inventory`.

    GPUs are listed by NVML index, because HAMi-core applies limit i to CUDA's i-th GPU, whatever order the
    annotation has. Without `hook` the limits are still written, for programs that read them.
    """
    ordered = sorted(shares, key=lambda share: inventory[share.uuid].index)
    uuids = tuple(share.uuid for share in ordered)
    env = dict(_limits(ordered, inventory))
    if settings.oversubscribed:
        env["CUDA_OVERSUBSCRIBE"] = "true"
    mounts: tuple[Mount, ...] = ()
    if hook is not None:
        env |= _hook_env(hook, container)
        mounts += _hook_mounts(hook, container)
    chosen = settings.strategies
    if DeviceListStrategy.VOLUME_MOUNTS in chosen:
        env["NVIDIA_VISIBLE_DEVICES"] = _VOLUME_ROOT
        mounts += tuple(
            Mount(container_path=f"{_VOLUME_ROOT}/{uuid}", host_path="/dev/null", read_only=False) for uuid in uuids
        )
    if DeviceListStrategy.ENVVAR in chosen:
        env["NVIDIA_VISIBLE_DEVICES"] = ",".join(uuids)
    names = tuple(f"{settings.cdi_kind}={uuid}" for uuid in uuids)
    annotations = {}
    if DeviceListStrategy.CDI_ANNOTATIONS in chosen:
        annotations[_cdi_annotation_key(container)] = ",".join(names)
    return ContainerEdits(
        env=env,
        mounts=mounts,
        annotations=annotations,
        cdi_devices=names if DeviceListStrategy.CDI_CRI in chosen else (),
    )


def cache_directory(hook_root: str, container: ContainerFacts) -> str:
    """The host folder of the container's HAMi-core region; vGPUmonitor takes uid and name from it."""
    return f"{hook_root}/vgpu/containers/{container.pod_uid}_{container.name}"


def _cdi_annotation_key(container: ContainerFacts) -> str:
    room = _CDI_NAME_LIMIT - len(_CDI_ANNOTATION.partition("/")[2])
    return _CDI_ANNOTATION + f"{container.pod_uid}_{container.name}"[:room].rstrip("-_.")


def _limits(shares: list[DeviceShare], inventory: Mapping[DeviceUUID, Device]) -> Mapping[str, str]:
    limits = {
        # 0 would mean "no limit" to HAMi-core; the whole GPU is what a share without a size means.
        f"CUDA_DEVICE_MEMORY_LIMIT_{position}": f"{share.memory_mib or inventory[share.uuid].memory_mib}m"
        for position, share in enumerate(shares)
    }
    # HAMi-core before April 2026 throttles every GPU by the first one's value and reads only this name.
    limits["CUDA_DEVICE_SM_LIMIT"] = str(shares[0].cores) if shares else "0"
    return limits | {f"CUDA_DEVICE_SM_LIMIT_{position}": str(share.cores) for position, share in enumerate(shares)}


def _hook_env(hook: Hook, container: ContainerFacts) -> Mapping[str, str]:
    env = {"CUDA_DEVICE_MEMORY_SHARED_CACHE": f"{hook.root}/vgpu/{container.pod_uid}.cache"}
    if hook.root != DEFAULT_HOOK_PATH:
        # HAMi-core looks itself up under /usr/local unless told otherwise.
        env["CUDA_REDIRECT"] = f"{hook.root}/vgpu/libvgpu.so"
    return env


def _hook_mounts(hook: Hook, container: ContainerFacts) -> tuple[Mount, ...]:
    inside = f"{hook.root}/vgpu"
    mounts = [
        Mount(container_path=f"{inside}/libvgpu.so", host_path=hook.library, read_only=True),
        Mount(container_path=inside, host_path=cache_directory(hook.root, container), read_only=False),
        Mount(container_path="/tmp/vgpulock", host_path="/tmp/vgpulock", read_only=False),  # noqa: S108 - HAMi-core's
    ]
    if container.env.get(CONTROL_SWITCH) not in _GO_TRUE:
        mounts.append(Mount(container_path="/etc/ld.so.preload", host_path=hook.preload, read_only=True))
    if hook.license:
        mounts += [
            Mount(container_path="/tmp/license", host_path=hook.license, read_only=True),  # noqa: S108 - HAMi-core's
            Mount(container_path="/usr/bin/vgpuvalidator", host_path=f"{inside}/vgpuvalidator", read_only=True),
        ]
    return tuple(mounts)
