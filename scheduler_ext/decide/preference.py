"""Chooses one of the nodes that fit a pod."""

from collections.abc import Mapping

from proto.devices import PairScores, PodShares
from scheduler_ext.cluster.accounting import least
from scheduler_ext.cluster.snapshot import NodeUsage, Snapshot
from scheduler_ext.decide.topology import connection
from scheduler_ext.policies import NodePolicy
from scheduler_ext.requests import GpuRequest

Preference = tuple[int, float, str]
"""The node with the smaller preference is taken. The last part is the node's name."""


_OF_A_LEVEL = 100.0
"""More than any node's score."""
_OF_WHOLE_NODES = 1e6
"""More than any node's score and level: such nodes come after all others that connect the pod's GPUs as well."""


def preference(
    policy: NodePolicy, name: str, total: float, connection: int, level: int = 0, *, spared: bool = False
) -> Preference:
    """Returns a key for sorting nodes: the best connected comes first; then one that is not `spared`; then the highest
    level; then the fullest or emptiest by node policy; then the first name.

    `total` is the node's score, `connection` is 0 where links are not compared, `level` is that of `fgd`.
    """
    by_policy = total if policy is NodePolicy.SPREAD else -total - level * _OF_A_LEVEL
    return -connection, by_policy + _OF_WHOLE_NODES if spared else by_policy, name


def is_spared(usage: NodeUsage, gpus: int) -> bool:
    """Returns whether a pod of so many GPUs had better go elsewhere: it would take a part of a node that is free as a
    whole, and an NVLink clique of several machines is worth most whole.
    """
    return bool(usage.node.clique) and gpus < len(usage.gpus) and usage.is_whole


def gpus_of(request: GpuRequest) -> int:
    """Returns the most GPUs that the pod has at once."""
    return least(request.kinds, request.needs).replicas


def compared_connections(request: GpuRequest, snapshot: Snapshot, placed: Mapping[str, PodShares]) -> Mapping[str, int]:
    """Returns how well the pod's GPUs are connected, by node, as sums of pair scores. Empty where that is not
    compared.
    """
    if not compares_connections(request):
        return {}
    return {name: connected(shares, snapshot.nodes[name].node.pair_scores) for name, shares in placed.items()}


def compares_connections(request: GpuRequest) -> bool:
    """Returns whether links are compared: for topology-aware pods with a container of several GPUs. HAMi does not
    compare nodes so.

    A pod takes equally many pairs on every node, so the sums are comparable.
    """
    several = any(need is not None and need.count > 1 for need in request.needs)
    return several and request.policies.gpu.topology_aware


def connected(shares: PodShares, scores: PairScores) -> int:
    """Returns the sum of the pair scores between the GPUs of each container."""
    return sum(connection(container, scores) for container in shares)
