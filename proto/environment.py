"""Environment variables that say what a container sees of GPUs and may use of them: the daemon gives them, the webhook
guards them.

Sources: NVIDIA's container toolkit for the first; HAMi-core's library for the others (docs/envs.md of HAMi-core).
"""

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
NONE_VISIBLE = ("", "none", "void")
"""Values of it that show no GPU; at `void` NVIDIA's runtime leaves the container alone."""
DISABLE_CONTROL = "CUDA_DISABLE_CONTROL"
"""Turns all limits off, where it is true."""
MEMORY_LIMIT = "CUDA_DEVICE_MEMORY_LIMIT"
"""Of each GPU with `_` and its position behind it."""
CORE_LIMIT = "CUDA_DEVICE_SM_LIMIT"
"""Likewise; without a position for all GPUs."""
CORE_POLICY = "GPU_CORE_UTILIZATION_POLICY"
TASK_PRIORITY = "CUDA_TASK_PRIORITY"
SHARED_CACHE = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
REDIRECT = "CUDA_REDIRECT"

TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
"""The texts that Go's strconv.ParseBool takes for true, as HAMi reads variables and annotations."""
