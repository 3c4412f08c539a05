"""Which of the nodes that fit the pod gets it."""

from collections.abc import Callable, Mapping

from proto.devices import PodShares
from scheduler_ext.cluster.snapshot import Snapshot
from scheduler_ext.policies import NodePolicy
from scheduler_ext.requests import GpuRequest
from scheduler_ext.scheduling.score import NodeScore
from scheduler_ext.scheduling.topology import connection


def choose_node(policy: NodePolicy, fits: Mapping[str, NodeScore], connections: Mapping[str, int]) -> str:
    """The best connected node; of equal ones the fullest or emptiest by the node policy, then the first by name.

    `fits` names at least one node. A node that `connections` does not name counts as not connected.
    """
    return min(fits, key=_preference(policy, fits, connections))


def rank_nodes(policy: NodePolicy, fits: Mapping[str, NodeScore], connections: Mapping[str, int]) -> list[str]:
    """All nodes in the order in which `choose_node` would take them."""
    return sorted(fits, key=_preference(policy, fits, connections))


def _preference(
    policy: NodePolicy, fits: Mapping[str, NodeScore], connections: Mapping[str, int]
) -> Callable[[str], tuple[int, float, str]]:
    sign = 1 if policy is NodePolicy.SPREAD else -1
    return lambda name: (-connections.get(name, 0), sign * fits[name].total, name)


def compared_connections(request: GpuRequest, snapshot: Snapshot, placed: Mapping[str, PodShares]) -> Mapping[str, int]:
    """By node, the pair scores between the GPUs of each container added up; empty where that is not compared.

    A pod takes equally many pairs on every node, so the sums compare. They count for topology-aware pods with a
    container of several GPUs, unless the cluster keeps HAMi's order.
    """
    several = any(need is not None and need.count > 1 for need in request.needs)
    if not (several and request.node_topology and request.policies.gpu.topology_aware):
        return {}
    return {
        name: sum(connection(container, snapshot.nodes[name].node.pair_scores) for container in shares)
        for name, shares in placed.items()
    }
