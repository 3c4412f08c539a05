"""The reasons why a GPU or a node does not serve a pod: the code on the wire, the words for people, and their order.

`/filter` answers with codes, which HAMi's consumers read. Events, `explain`, the status page, the kubectl plugin and
the planner give words, of several reasons the most important first.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache

from proto.devices import Device
from proto.environment import DEFAULT_CORE_POLICY, LIFTING_PREFIXES, lifting
from scheduler_ext.cluster.closed_nodes import REFUSED_ALIKE, SET_ASIDE_NODE
from scheduler_ext.cluster.registered import NODE_CORDONED, UNREGISTERED, RegisteredNode
from scheduler_ext.cluster.snapshot import TOTAL_EXCEEDED


class Reason(StrEnum):
    """The codes, the most important first: what no waiting mends comes before what a pod that ends may mend."""

    words: str

    def __new__(cls, code: str, words: str) -> "Reason":
        reason = str.__new__(cls, code)
        reason._value_, reason.words = code, words
        return reason

    UNREGISTERED = UNREGISTERED, "offers no GPU"
    NODE_INSUFFICIENT_DEVICE = "NodeInsufficientDevice", "fewer GPUs than asked for"
    NOT_HEALTHY = "CardNotHealth", "unhealthy"
    CORDONED = "CardCordoned", "cordoned"
    TYPE = "CardTypeMismatch", "another model than asked for"
    UUID = "CardUuidMismatch", "not one of the GPUs asked for"
    LIMITS = "CardLimitsNotEnforced", "nothing holds the container to a part of a GPU"
    GROUP_MEMBER_LOST = "GroupMemberLost", "a member of its group has lost its GPUs to others while it waited"
    GROUP = "GroupDoesNotFit", "not all pods of its group fit"
    TOTAL_EXCEEDED = (
        TOTAL_EXCEEDED,
        "kubelet would refuse the pod: its node's totals of GPU memory or cores are used up",
    )
    SET_ASIDE = SET_ASIDE_NODE, "set aside for a pod that has waited for long"
    REFUSED_ALIKE = REFUSED_ALIKE, "its kubelet has refused a pod with the same requests for the place of its CPUs"
    CPUS_APART = (
        "CpusApartFromGpus",
        "kubelet's Topology Manager would refuse the pod: no NUMA node has enough CPUs and GPUs for it free",
    )
    """Given for all GPUs of a node."""
    REPLICAS_APART = (
        "CpusApartFromReplicas",
        "kubelet's Topology Manager would refuse the pod: it counts replicas; with device_split_count: 1 on this node "
        "it counts GPUs, and takes the pod",
    )
    """Given for all GPUs of a node."""
    NUMA_CHANGES = (
        "NumaNodesChange",
        "kubelet is about to be led to other NUMA nodes, and the pod waits until it is known which",
    )
    """Given for all GPUs of a node, for a moment."""
    APART = "CardApartFromCpus", "on another NUMA node than the CPUs that kubelet would give the container"
    QUOTA = "ResourceQuotaNotFit", "the namespace's quota is used up"
    MIG = "CardMigTopologyInfeasible", "no free MIG instance that is large enough"
    MEMORY = "CardInsufficientMemory", "too little free memory"
    CORES = "CardInsufficientCore", "too few free cores"
    CORES_EXHAUSTED = "CardComputeUnitsExhausted", "all cores reserved"
    REPLICAS = "CardTimeSlicingExhausted", "no replica left"
    EXCLUSIVE = "ExclusiveDeviceAllocateConflict", "a whole GPU is asked for, and this one is shared"
    NUMA = "NumaNotFit", "too few such GPUs on one NUMA node"
    """The GPU fits, but its NUMA node has too few that fit."""
    TOO_FEW = "AllocatedCardsInsufficientRequest", "too few GPUs that fit"
    """The GPU fits, but too few GPUs do."""
    NOT_LOOKED_AT = "NotLookedAtYet", "not judged yet"
    """Given for a whole node: the answer's effort was used up first. The next answer continues there."""


NO_GPU_SO_LARGE = "no GPU is that large"
TOO_FEW_SO_LARGE = "too few GPUs are that large"
"""Words for `Reason.MEMORY` where no pod that ends makes a difference."""

NO_HOOK = "no HAMi-core"
NO_CORES = "no HAMi-core for cores"
SEVERAL = "parts of several GPUs"
LIFTED = "{variable} of the container lifts what limits it to a part of a GPU; remove it, or ask for whole GPUs"
_CAUSES = {
    NO_HOOK: "neither driver nor HAMi-core of the node holds containers to a part of a GPU",
    NO_CORES: "the node's driver holds containers to memory, and no HAMi-core holds them to cores",
    SEVERAL: "the node's HAMi-core does not hold a container to parts of several GPUs",
}
_REMEDIES = {
    NO_HOOK: "ask for whole GPUs, install HAMi-core or a driver of release 615 {there}, {allow}",
    NO_CORES: "ask for memory and no cores, install HAMi-core {there}, {allow}",
    SEVERAL: "ask for whole GPUs or for one GPU in each container, {allow}",
}
UNHELD = {
    word: f"{cause}; {_REMEDIES[word]}".format(there="there", allow="or add unenforced to limits of its daemon")
    for word, cause in _CAUSES.items()
}
"""The cause of CardLimitsNotEnforced on one node, and what to do, by what stands behind the word in `Misfit.brief`."""
REMEDIES = {
    **{
        word: f"A{remedy[1:]}".format(there="on the nodes", allow="or add unenforced to limits of their daemons")
        for word, remedy in _REMEDIES.items()
    },
    **{
        name: f"Remove {name} from the container, or ask for whole GPUs"
        for name in (*lifting(DEFAULT_CORE_POLICY), *LIFTING_PREFIXES)
    },
}
"""The remedies alone, for all nodes of an answer."""

_BY_CODE = {str(reason): reason for reason in Reason}
_IMPORTANCE = {reason: number for number, reason in enumerate(Reason)}
_CODE = re.compile(r"(?P<code>[A-Za-z ]*[A-Za-z])(\([^()]*\))?(: (?P<detail>.*))?( \d+/\d+)?")
"""One reason of a node in an answer of `/filter`: `CardInsufficientMemory 2/4`, `node unregistered: …`."""


def by_importance(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    """Returns each reason once, the most important first. That some GPUs fit counts only if nothing is known of the
    others.
    """
    found = set(reasons)
    return tuple(sorted(found - {Reason.TOO_FEW} or found, key=_IMPORTANCE.__getitem__))


def joined(words: Iterable[str]) -> str:
    """Returns the reasons of one node as people read them."""
    return ", ".join(words)


def out_of_service(node: RegisteredNode, device: Device) -> str:
    """Returns the words for why no pod may get the GPU; empty if pods may. The GPU's own state comes before that of
    its node.
    """
    if not device.healthy:
        return Reason.NOT_HEALTHY.words
    if device.uuid in node.cordoned:
        return Reason.CORDONED.words
    return NODE_CORDONED if node.closed else ""


@lru_cache(maxsize=1024)
def words_of(answer: str) -> tuple[str, ...]:
    """Returns the words for a node's reason in an answer of `/filter`. Text without a code stays as it is."""
    found = [match for part in answer.split(" + ") if (match := _CODE.fullmatch(part)) and match["code"] in _BY_CODE]
    if not found:
        return (answer,)
    details = [match["detail"] for match in found if match["detail"]]
    reasons = by_importance(_BY_CODE[match["code"]] for match in found)
    return tuple(details) or tuple(reason.words for reason in reasons)
