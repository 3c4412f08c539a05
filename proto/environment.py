"""Environment variables that limit which GPUs a container sees, and how much it may use. The daemon sets them, and the
webhook checks them.

Sources: NVIDIA's container toolkit for the first; HAMi-core's library for the others (docs/envs.md of HAMi-core).
"""

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
NONE_VISIBLE = ("", "none", "void")
"""Values of it that show no GPU; with `void`, NVIDIA's runtime does nothing."""
DISABLE_CONTROL = "CUDA_DISABLE_CONTROL"
"""Turns all limits off if it is true."""
MEMORY_LIMIT = "CUDA_DEVICE_MEMORY_LIMIT"
"""The memory limit of a GPU; `_` and the GPU's position follow."""
CORE_LIMIT = "CUDA_DEVICE_SM_LIMIT"
"""The core limit, likewise; without a position it applies to all GPUs."""
CORE_POLICY = "GPU_CORE_UTILIZATION_POLICY"
TASK_PRIORITY = "CUDA_TASK_PRIORITY"
SHARED_CACHE = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
REDIRECT = "CUDA_REDIRECT"

TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
"""The texts that Go's strconv.ParseBool takes for true, as HAMi reads variables and annotations."""
