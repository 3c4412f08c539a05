"""Every annotation, label and resource name on the wire, spelled once.

`hami.io/*` and `nvidia.com/*` are HAMi's names (v2.10, docs/develop/protocol.md and
pkg/device/nvidia/device.go of Project-HAMi/HAMi); `topogpu.io/*` are ours.
"""

NODE_REGISTER = "hami.io/node-nvidia-register"
NODE_SCORE = "hami.io/node-nvidia-score"
NODE_HANDSHAKE = "hami.io/node-handshake"
NODE_LOCK = "hami.io/mutex.lock"
DEVICE_CORDON = "hami.io/device-cordon"
NODE_ALLOCATION = "topogpu.io/allocation"
NODE_LIMITS = "topogpu.io/limits"
NODE_SIMULATED = "topogpu.io/simulated"
NODE_NUMA = "topogpu.io/numa"
"""`true` on a Node whose GPUs are not real. The chart's label of this name selects the nodes that are to simulate."""
NODE_LOCK_UID = "topogpu.io/lock-uid"
NODE_UNDECIDED = "topogpu.io/undecided-pods"
NODE_OUTLIVING = "topogpu.io/outliving-pods"
NODE_UNHEALTHY = "topogpu.io/unhealthy-since"
NODE_CONDITION = "TopoGPUHealthy"
"""The type of a Node's condition."""
NODE_TAINT = "topogpu.io/gpu-unhealthy"
"""The key of a taint."""
LEASE_EVICTIONS = "topogpu.io/evictions"
"""The key on the Lease of the cluster's evictions: which node's daemon evicted a pod, and when."""
NODE_LABELS = "topogpu.io/feature-labels"
"""The labels that the node daemon wrote on its Node, with their values, as JSON."""

NODE_CLIQUE = "nvidia.com/gpu.clique"
"""A label: the NVLink domain, with the UUID of its fabric's cluster and the number of its clique."""
NODE_HOSTNAME = "kubernetes.io/hostname"
"""A label."""

POD_NODE = "hami.io/vgpu-node"
POD_TIME = "hami.io/vgpu-time"
DEVICES_TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
DEVICES_ALLOCATED = "hami.io/vgpu-devices-allocated"
MIG_ALLOCATIONS = "hami.io/vgpu-mig-allocations"
BIND_PHASE = "hami.io/bind-phase"
BIND_TIME = "hami.io/bind-time"
REQUEUE = "topogpu.io/nudge"
MEMORY_WISH = "topogpu.io/gpu-memory"
"""The wish for other GPU memory of a running pod; who may change the pod may write it."""
MEMORY_RESIZE = "topogpu.io/gpu-memory-resize"
"""The answer to that wish."""
SET_ASIDE = "topogpu.io/set-aside"
"""The node that is set aside for a pod that waits."""
SCHEDULER_ROLE = "hami.io/scheduler-role"

POD_WRITTEN_KEYS = (
    POD_NODE,
    POD_TIME,
    DEVICES_TO_ALLOCATE,
    DEVICES_ALLOCATED,
    MIG_ALLOCATIONS,
    BIND_PHASE,
    BIND_TIME,
    REQUEUE,
    MEMORY_RESIZE,
    SET_ASIDE,
)
"""Annotations of pods that only the scheduler and the daemon may write."""
POD_WRITTEN_PREFIX = "hami.io/vgpu-devices-"
"""The prefix of every vendor's device annotations."""
WEBHOOK = "hami.io/webhook"
"""A label: `ignore` on a pod or a namespace makes the admission webhook skip its pods."""
WEBHOOK_IGNORE = "ignore"

NODE_POLICY = "hami.io/node-scheduler-policy"
GPU_POLICY = "hami.io/gpu-scheduler-policy"
SCORING_WEIGHTS = "hami.io/device-scoring-weights"
USE_GPU_TYPE = "nvidia.com/use-gputype"
NO_USE_GPU_TYPE = "nvidia.com/nouse-gputype"
USE_GPU_UUID = "nvidia.com/use-gpuuuid"
NO_USE_GPU_UUID = "nvidia.com/nouse-gpuuuid"
NUMA_BIND = "nvidia.com/numa-bind"
VGPU_MODE = "nvidia.com/vgpu-mode"
REQUIRED_TOPOLOGY = "topogpu.io/required-topology"
PREFERRED_TOPOLOGY = "topogpu.io/preferred-topology"
KUEUE_REQUIRED_TOPOLOGY = "kueue.x-k8s.io/podset-required-topology"
KUEUE_PREFERRED_TOPOLOGY = "kueue.x-k8s.io/podset-preferred-topology"

RESOURCE_COUNT = "nvidia.com/gpu"
RESOURCE_MEMORY = "nvidia.com/gpumem"
RESOURCE_MEMORY_PERCENTAGE = "nvidia.com/gpumem-percentage"
RESOURCE_CORES = "nvidia.com/gpucores"
RESOURCE_PRIORITY = "nvidia.com/priority"
RESOURCE_MEMORY_SUM = "topogpu.io/total-gpumem"
"""MiB of all GPUs of a container together, and of a Node."""
RESOURCE_CORES_SUM = "topogpu.io/total-gpucores"
"""Percent of one GPU's cores, of all GPUs of a container together, and of a Node."""
SUMS = (RESOURCE_MEMORY_SUM, RESOURCE_CORES_SUM)
"""The resources that add up, as the webhook writes them; GPUs are requested by the others."""
