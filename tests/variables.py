"""Environments of a container, and what each does past what was decided for it: the one table by which webhook, policy,
`/filter` and daemon are tested.
"""

from proto.admission import Json

HARMLESS, CHOOSES, LIFTS, PRELOADS = "harmless", "chooses", "lifts", "preloads"
CONFIG_MAP = {"configMapKeyRef": {"name": "m", "key": "k", "optional": True}}


def value(name: str, text: str) -> Json:
    return {"name": name, "value": text}


def elsewhere(name: str) -> Json:
    return {"name": name, "valueFrom": CONFIG_MAP}


def empty(name: str) -> Json:
    """As the API server writes an empty value."""
    return {"name": name}


VISIBLE, CONTROL = "NVIDIA_VISIBLE_DEVICES", "CUDA_DISABLE_CONTROL"
TABLE: tuple[tuple[str, tuple[Json, ...]], ...] = (
    *((CHOOSES, (value(VISIBLE, text),)) for text in ("all", "0", "GPU-a", "none,0", "void ", "$(X)")),
    *((HARMLESS, (value(VISIBLE, text),)) for text in ("none", "void")),
    (HARMLESS, (empty(VISIBLE),)),
    (CHOOSES, (elsewhere(VISIBLE),)),
    (CHOOSES, (value("ALL", "void"), value(VISIBLE, "$(ALL)"))),
    (CHOOSES, (value(VISIBLE, "void"), value(VISIBLE, "all"))),
    (CHOOSES, (value(VISIBLE, "all"), value(VISIBLE, "void"))),
    (HARMLESS, (value("CUDA_VERSION", "11.0"), value(VISIBLE, "void"))),
    (HARMLESS, (empty("CUDA_VERSION"),)),
    *((CHOOSES, (value(f"NVIDIA_{name}", "enabled"),)) for name in ("NVSWITCH", "GDRCOPY", "GDS", "MOFED")),
    *((CHOOSES, (elsewhere(f"NVIDIA_{name}"),)) for name in ("NVSWITCH", "GDRCOPY", "GDS", "MOFED")),
    *((HARMLESS, (value(f"NVIDIA_{name}", "disabled"),)) for name in ("NVSWITCH", "GDRCOPY", "GDS", "MOFED")),
    (CHOOSES, (value("NVIDIA_IMEX_CHANNELS", "0,1"),)),
    (HARMLESS, (value("NVIDIA_IMEX_CHANNELS", "void"),)),
    (CHOOSES, (value("NVIDIA_MIG_CONFIG_DEVICES", "all"),)),
    (CHOOSES, (value("NVIDIA_MIG_MONITOR_DEVICES", "all"),)),
    *((LIFTS, (value(CONTROL, text),)) for text in ("1", "t", "T", "TRUE", "true", "True", "$(ON)", "$$(ON)", "on")),
    *((HARMLESS, (value(CONTROL, text),)) for text in ("0", "f", "F", "FALSE", "false", "False")),
    (HARMLESS, (empty(CONTROL),)),
    (LIFTS, (elsewhere(CONTROL),)),
    (LIFTS, (value("ON", "true"), value(CONTROL, "$(ON)"))),
    (LIFTS, (value(CONTROL, "true"), value(CONTROL, "false"))),
    *((LIFTS, (value("GPU_CORE_UTILIZATION_POLICY", text),)) for text in ("disable", "DISABLE", "$(X)", "")),
    *((HARMLESS, (value("GPU_CORE_UTILIZATION_POLICY", text),)) for text in ("default", "force")),
    (LIFTS, (elsewhere("GPU_CORE_UTILIZATION_POLICY"),)),
    *((LIFTS, (value(f"CUDA_DEVICE_MEMORY_LIMIT{end}", "0"),)) for end in ("", "_0", "_15", "_a,b")),
    *((LIFTS, (value(f"CUDA_DEVICE_SM_LIMIT{end}", "100"),)) for end in ("", "_0")),
    (LIFTS, (elsewhere("CUDA_DEVICE_MEMORY_LIMIT_0"),)),
    (LIFTS, (value("CUDA_DEVICE_ORDER", "FASTEST_FIRST"),)),
    (HARMLESS, (value("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),)),
    (LIFTS, (value("CUDA_DEVICE_MEMORY_SHARED_CACHE", "/tmp/x"),)),
    (LIFTS, (value("CUDA_REDIRECT", "/x.so"),)),
    (LIFTS, (value("NVIDIA_GPU_MEMORY_REQUEST", "80000"),)),
    (LIFTS, (value("NVIDIA_GPU_MEMORY_LIMIT", "80000"),)),
    (PRELOADS, (value("LD_PRELOAD", "/usr/lib/libjemalloc.so"),)),
    (PRELOADS, (value("LD_AUDIT", "/x.so"),)),
    (HARMLESS, (empty("LD_PRELOAD"),)),
    (HARMLESS, (value("CUDA_VISIBLE_DEVICES", "0"), value("CUDA_TASK_PRIORITY", "1"))),
    (HARMLESS, (value("NVIDIA_DRIVER_CAPABILITIES", "all"), value("NVIDIA_REQUIRE_CUDA", "cuda>=99"))),
    (HARMLESS, (value("LIBCUDA_LOG_LEVEL", "4"), value("ACTIVE_OOM_KILLER", "0"), value("PATH", "$(HOME)/bin"))),
)
UNANSWERED: tuple[tuple[str, tuple[Json, ...]], ...] = (
    (CHOOSES, (value("CUDA_VERSION", "11.0"),)),
    (CHOOSES, (elsewhere("CUDA_VERSION"),)),
    (CHOOSES, (value("CUDA_VERSION", "11.0"), value("NVIDIA_REQUIRE_CUDA", ""))),
)
"""What is harmless where the daemon sets which GPUs a container sees, and not elsewhere."""
