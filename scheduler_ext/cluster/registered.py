"""A node's GPUs as its annotations register them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from proto.annotations.errors import AnnotationError, attempted
from proto.annotations.keys import (
    DEVICE_CORDON,
    NODE_ALLOCATION,
    NODE_CLIQUE,
    NODE_LIMITS,
    NODE_NUMA,
    NODE_REGISTER,
    NODE_SCORE,
    NODE_SIMULATED,
    NODE_UNDECIDED,
)
from proto.annotations.node_allocation import AllocationMode, decode_mode
from proto.annotations.node_limits import NodeLimits, decode_limits
from proto.annotations.node_numa import NodeNuma, decode_numa
from proto.annotations.node_register import decode_cordon, decode_register, decode_scores
from proto.annotations.undecided_pods import Given, decode_undecided
from proto.devices import Device, DeviceUUID, PairScores
from proto.kubernetes.objects import Node, Toleration
from proto.kubernetes.taints import CORDON, Taint, repelling, toleration_of, untolerated
from proto.quantity import QuantityError, integer_quantity
from scheduler_ext.domains.levels import LEVELS, Domains, domains_of

POOL_LABELS = (
    "karpenter.sh/nodepool",
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "node.kubernetes.io/instance-type",
)
"""Labels that name a node's pool; the first that is there counts. The last one is the kind of machine."""
UNREGISTERED = "node unregistered"
NODE_CORDONED = "the node is cordoned"


class Unregistered(Exception):
    """No GPU of this node can be given out. `reason` is its line in FailedNodes."""

    def __init__(self, problem: str = "", *, malformed: bool = False) -> None:
        self.reason = f"{UNREGISTERED}: {problem}" if problem else UNREGISTERED
        self.malformed = malformed
        """True if the cause is an unreadable annotation."""
        super().__init__(self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredNode:
    """GPUs in annotation order: that order breaks ties."""

    name: str
    devices: tuple[Device, ...]
    pair_scores: PairScores = field(default_factory=dict)
    cordoned: frozenset[DeviceUUID] = frozenset()
    by_slots: bool = False
    """True if its daemon knows containers by the device ids that kubelet gave them."""
    limits: NodeLimits = NodeLimits.PARTLY_ENFORCED
    simulated: bool = False
    """True if its GPUs are not real."""
    numa: NodeNuma | None = None
    """The way its kubelet keeps CPUs and GPUs together; None if that is unknown."""
    given: Mapping[str, Given] = field(default_factory=dict)
    """The replicas that kubelet gave of each GPU to pods without a decision, by UID, as far as the daemon knows."""
    pool: str = ""
    """The pool of nodes to which it belongs, by its labels; empty without one."""
    taints: tuple[Taint, ...] = ()
    """The taints that keep pods away which do not tolerate them."""
    barred_by: tuple[Taint, ...] = ()
    """The taints among them that also keep pods with GPUs away. These tolerate the taint of their resource, by
    Kubernetes' admission plugin ExtendedResourceToleration.
    """
    domains: Domains = field(default_factory=dict)
    """The domains that it is in, by level."""
    unread: str = ""
    """The annotation of a newer daemon that cannot be read, and why; empty for none."""

    @property
    def clique(self) -> str:
        """Returns the NVLink domain of several machines that it is in; empty without one."""
        return self.domains.get(NODE_CLIQUE, "")

    @property
    def closed(self) -> bool:
        """Returns whether `kubectl cordon` has closed the node."""
        return CORDON in self.taints

    def repels(self, tolerations: Iterable[Toleration]) -> str:
        """Returns why kube-scheduler offers no pod with these tolerations to the node; empty if it may."""
        taint = untolerated(self.taints, tolerations)
        if taint is None:
            return ""
        return NODE_CORDONED if taint == CORDON else f"the node has the taint {taint}, which the pod does not tolerate"


def read_node(node: Node, count_name: str, levels: Sequence[str] = LEVELS, unread: str = "") -> RegisteredNode:
    """Reads a Node. Raises Unregistered for a node without GPUs, unreadable annotations, or a kubelet that is away or
    offers none.

    `count_name` is the resource under which kubelet offers them, `levels` are those of domains. `unread` is the reason
    why another annotation cannot be read, or empty.
    """
    annotations = node.metadata.annotations
    if NODE_REGISTER not in annotations:
        raise Unregistered
    try:
        devices = decode_register(annotations[NODE_REGISTER])
        scores = decode_scores(annotations[NODE_SCORE]) if annotations.get(NODE_SCORE) else {}
    except AnnotationError as error:
        raise Unregistered(str(error), malformed=True) from error
    if not devices:
        raise Unregistered(f"{NODE_REGISTER} lists no GPU")
    if any(condition.type == "Ready" and condition.status != "True" for condition in node.status.conditions):
        raise Unregistered("the node is not ready")
    if _kubelet_offers_none(node, count_name):
        raise Unregistered(f"its kubelet offers no {count_name} now; is the device plugin running?")
    numa, no_numa = attempted(decode_numa, annotations.get(NODE_NUMA))
    # Without a readable report such pods count as more than they may hold.
    given, not_given = attempted(decode_undecided, annotations.get(NODE_UNDECIDED))
    taints = repelling(node)
    return RegisteredNode(
        name=node.metadata.name,
        devices=devices,
        pair_scores=scores,
        cordoned=decode_cordon(annotations.get(DEVICE_CORDON, "")),
        by_slots=decode_mode(annotations.get(NODE_ALLOCATION)) is AllocationMode.SLOTS,
        limits=decode_limits(annotations.get(NODE_LIMITS)),
        simulated=NODE_SIMULATED in annotations,
        numa=numa,
        given=given or {},
        pool=next((node.metadata.labels[each] for each in POOL_LABELS if node.metadata.labels.get(each)), ""),
        taints=taints,
        barred_by=tuple(each for each in taints if untolerated([each], [toleration_of(count_name)])),
        domains=domains_of(node.metadata.labels, levels),
        unread=no_numa or not_given or unread,
    )


def _kubelet_offers_none(node: Node, count_name: str) -> bool:
    """Returns whether kubelet offers no GPU. A count of 0 is its report that the plugin is gone. Without a count no
    plugin has registered yet, and kubelet would start the containers of a pod without any GPU: it ignores resources
    that it does not know.
    """
    try:
        return integer_quantity(node.status.allocatable.get(count_name, 0)) == 0
    except QuantityError:
        return False
