"""Environment variables by which a container gets GPUs and its limits. The daemon sets them. A container's own ones may
get it past what was decided, so webhook, policy, `/filter` and daemon judge them by the functions below.

Sources:

- NVIDIA's container toolkit 1.20.1 (internal/config/image/cuda_image.go, internal/modifier/cdi.go,
  cmd/nvidia-cdi-hook/apply-cuda-memory-limits), for what its runtime reads.
- HAMi-core (multiprocess_memory_limit.c, libvgpu.c) and HAMi's device plugin (server.go), for limits.
- CUDA's programming guide, for the order of devices.

What an entry's value will be is known only where it is written out. `valueFrom` and a reference `$(NAME)` may become
anything: other entries, ConfigMaps, Secrets and Services decide on them. Of several entries with one name kubelet takes
the last, and HAMi's plugin any that is true, so one harmful entry is enough. What `envFrom` brings is not in the pod
and not judged.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType

from proto.kubernetes.objects import EnvVar

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
VOID = "void"
"""The value with which NVIDIA's runtime does nothing. With `none` it adds the driver without GPUs, and in mode cdi it
refuses the container.
"""
NONE_VISIBLE = ("", "none", VOID)
"""Values of it that show no GPU."""
LEGACY_VERSION = "CUDA_VERSION"
"""Where the variable above is missing, NVIDIA's runtime shows every GPU to an image that has this one."""
ENABLED, DISABLED = "enabled", "disabled"
IMEX_CHANNELS = "NVIDIA_IMEX_CHANNELS"
FEATURES: Mapping[str, str] = MappingProxyType(
    {
        IMEX_CHANNELS: VOID,
        "NVIDIA_NVSWITCH": DISABLED,
        "NVIDIA_GDRCOPY": DISABLED,
        "NVIDIA_GDS": DISABLED,
        "NVIDIA_MOFED": DISABLED,
    }
)
"""Variables by which NVIDIA's runtime adds devices of the node to a container with GPUs, each with a value by which it
adds none.
"""
DISABLE_CONTROL = "CUDA_DISABLE_CONTROL"
"""Turns all limits off if it is true."""
MEMORY_LIMIT = "CUDA_DEVICE_MEMORY_LIMIT"
"""The memory limit of a GPU; `_` and the GPU's position follow."""
CORE_LIMIT = "CUDA_DEVICE_SM_LIMIT"
"""The core limit, likewise; without a position it applies to all GPUs."""
CORE_POLICY = "GPU_CORE_UTILIZATION_POLICY"
DEFAULT_CORE_POLICY, FORCED = "default", "force"
"""Values of it: HAMi-core takes every unknown one for the first; `force` never lifts a limit."""
DEVICE_ORDER, BY_PCI_ADDRESS = "CUDA_DEVICE_ORDER", "PCI_BUS_ID"
"""HAMi-core's limits are in this order of GPUs. CUDA's own order is the fastest first."""
TASK_PRIORITY = "CUDA_TASK_PRIORITY"
SHARED_CACHE = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
REDIRECT = "CUDA_REDIRECT"

TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
"""The texts that Go's strconv.ParseBool takes for true, as HAMi reads variables and annotations."""
FALSE = ("", "0", "f", "F", "false", "FALSE", "False")

CHOOSING: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        VISIBLE_DEVICES: NONE_VISIBLE,
        **{name: ("", none) for name, none in FEATURES.items()},
        "NVIDIA_MIG_CONFIG_DEVICES": ("",),
        "NVIDIA_MIG_MONITOR_DEVICES": ("",),
    }
)
"""Variables by which NVIDIA's runtime gives a container devices, with the values that are harmless."""
_CHOOSING_UNANSWERED = MappingProxyType({**CHOOSING, LEGACY_VERSION: ("",)})
DRIVER_SOFT_LIMIT, DRIVER_HARD_LIMIT = "NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT"
"""The driver's own limits in MiB, which a hook of NVIDIA's toolkit sets. A soft limit takes memory from others."""
_LIFTING: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        DISABLE_CONTROL: FALSE,
        DEVICE_ORDER: (BY_PCI_ADDRESS,),
        SHARED_CACHE: ("",),
        REDIRECT: ("",),
        DRIVER_SOFT_LIMIT: ("",),
        DRIVER_HARD_LIMIT: ("",),
    }
)
LIFTING_PREFIXES = (MEMORY_LIMIT, CORE_LIMIT)
"""The beginning of the names of amounts. No value of these is harmless."""
PRELOADING: Mapping[str, tuple[str, ...]] = MappingProxyType({"LD_PRELOAD": ("",), "LD_AUDIT": ("",)})
"""Variables of the loader. A library may get between a program and HAMi-core, but most do not. So these are refused
where a pod is created, and nowhere after.
"""


@cache
def lifting(core_policy: str) -> Mapping[str, tuple[str, ...]]:
    """Returns variables that lift or change limits, with the values that are harmless in a cluster with
    this policy for cores.
    """
    return {**_LIFTING, CORE_POLICY: (core_policy, FORCED)}


def is_judged(name: str) -> bool:
    """Returns whether the verdict on a pod with GPUs depends on this variable after its creation."""
    return name in _CHOOSING_UNANSWERED or name in _LIFTING or name == CORE_POLICY or name.startswith(LIFTING_PREFIXES)


def chosen_by(env: Sequence[EnvVar], *, gpus_set: bool) -> tuple[str, ...]:
    """Names the variables by which a container would get devices that were not decided for it.

    `gpus_set`: the container requests GPUs, so the daemon sets its NVIDIA_VISIBLE_DEVICES.
    """
    shown = gpus_set or any(variable.name == VISIBLE_DEVICES for variable in env)
    return _harmful(env, CHOOSING if shown else _CHOOSING_UNANSWERED)


def lifted_by(env: Iterable[EnvVar], core_policy: str = DEFAULT_CORE_POLICY) -> tuple[str, ...]:
    """Names the variables by which a container would use more of a GPU than its part."""
    return _harmful(env, lifting(core_policy), LIFTING_PREFIXES)


def is_turned_off(env: Iterable[EnvVar]) -> bool:
    """Returns whether the container turns its limits off for sure, as HAMi's plugin reads that."""
    return any(variable.name == DISABLE_CONTROL and variable.value in TRUE for variable in env)


def preloaded_by(env: Iterable[EnvVar]) -> tuple[str, ...]:
    """Names the variables by which a container loads libraries before HAMi-core."""
    return _harmful(env, PRELOADING)


def _harmful(
    env: Iterable[EnvVar], rules: Mapping[str, tuple[str, ...]], prefixes: tuple[str, ...] = ()
) -> tuple[str, ...]:
    def is_harmful(variable: EnvVar) -> bool:
        harmless = rules.get(variable.name)
        if harmless is None:
            return variable.name.startswith(prefixes)
        return variable.value_from is not None or variable.value not in harmless

    return tuple(dict.fromkeys(variable.name for variable in env if is_harmful(variable)))
