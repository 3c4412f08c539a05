"""Reasons and policies in plain words."""

from scheduler_ext.decide.misfit import Reason
from scheduler_ext.policies import NodePolicy

WORDS = {
    Reason.NODE_INSUFFICIENT_DEVICE: "has fewer GPUs than asked for",
    Reason.NOT_HEALTHY: "unhealthy",
    Reason.CORDONED: "cordoned",
    Reason.TYPE: "another model than asked for",
    Reason.UUID: "not one of the GPUs asked for",
    Reason.LIMITS: "a part of a GPU is asked for, and nothing on the node enforces such a limit",
    Reason.SLOTS: "no slot left",
    Reason.EXCLUSIVE: "a whole GPU is asked for, and this one is shared",
    Reason.QUOTA: "the namespace's quota is used up",
    Reason.MEMORY: "too little free memory",
    Reason.CORES: "too few free cores",
    Reason.CORES_EXHAUSTED: "all cores reserved",
    Reason.MIG: "no free MIG instance that is large enough",
    Reason.NUMA: "too few such GPUs on one NUMA node",
    Reason.TOO_FEW: "fits, but there are too few such GPUs",
}
"""Every reason of a GPU. `NOT_LOOKED_AT` is none: no decision on one snapshot leaves a node out."""

WHY_NODE = {
    NodePolicy.BINPACK: "takes the fullest node on which the pod fits",
    NodePolicy.SPREAD: "takes the emptiest node on which the pod fits",
    NodePolicy.FGD: "takes the node where the pod strands least of what popular pods could use, then the fullest",
}
"""What each node policy does."""

WHY_GPUS = {
    "binpack": "takes the fullest GPUs that fit",
    "spread": "takes the emptiest GPUs that fit",
    "topology-aware": "takes the best-connected GPUs that fit; for one GPU the one with the weakest links",
    "mutex": "takes GPUs that no container uses",
    "numa": "takes GPUs of one NUMA node",
    "fgd": "takes the fullest GPU that fits; for several GPUs the best-connected ones",
}
"""What each GPU policy does, by its word."""
