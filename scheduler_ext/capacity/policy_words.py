"""Policies in plain words."""

from scheduler_ext.policies import NodePolicy

WHY_NODE = {
    NodePolicy.BINPACK: "takes the fullest node on which the pod fits",
    NodePolicy.SPREAD: "takes the emptiest node on which the pod fits",
    NodePolicy.FGD: "takes the node where the pod strands least of what popular pods could use, then the fullest",
}
"""The effect of each node policy."""

WHY_GPUS = {
    "binpack": "takes the fullest GPUs that fit",
    "spread": "takes the emptiest GPUs that fit",
    "topology-aware": "takes the best-connected GPUs that fit; for one GPU the one with the weakest links",
    "mutex": "takes GPUs that no container uses",
    "numa": "takes GPUs of one NUMA node",
    "fgd": "takes the fullest GPU that fits; for several GPUs the best-connected ones",
}
"""The effect of each GPU policy, by its word."""
