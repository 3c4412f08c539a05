"""Computes how good GPUs and nodes are for a pod, and the order in which nodes that fit are taken.

Scores are in 32-bit floats as in HAMi, so that ties break the same way. The device score is a prediction: it counts the
request in. Source of the formulas: HAMi v2.10, pkg/scheduler/policy.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from struct import Struct

from proto.devices import PairScores, PodShares
from scheduler_ext.cluster.accounting import least
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage
from scheduler_ext.decide.topology import connection
from scheduler_ext.policies import NodePolicy, SortKey, Weights
from scheduler_ext.requests import ContainerNeed, GpuRequest

_SINGLE = Struct("f")
_FACTOR = 10
MOST_SCORES = 4_096
"""Scores remembered of each kind. Amounts in use change all the time, and old scores soon lose their use."""


def device_score(gpu: GpuUsage, need: ContainerNeed, weights: Weights) -> float:
    """Returns `10 * (replicas + cores + memory)`: each is the weighted fraction in use, this container included. 0 if a
    total is 0.
    """
    device = gpu.device
    return _device_score(
        (gpu.replicas + 1, device.replicas, weights.replicas),
        (gpu.cores + need.cores, device.cores, weights.cores),
        (gpu.memory_mib + _scored_mib(need, device.memory_mib), device.memory_mib, weights.memory),
    )


def sort_gpus(gpus: list[GpuUsage], need: ContainerNeed, request: GpuRequest) -> None:
    """Sorts in place, stable, ascending by the policy's keys. The last GPU is to be tried first."""
    policy = request.policies.gpu
    weights = request.policies.weights
    for key in reversed(policy.bound_keys if request.numa_bound else policy.keys):
        match key:
            case SortKey.SCORE:
                gpus.sort(key=lambda gpu: device_score(gpu, need, weights))
            case SortKey.SCORE_DESCENDING:
                gpus.sort(key=lambda gpu: -device_score(gpu, need, weights))
            case SortKey.NUMA:
                gpus.sort(key=lambda gpu: gpu.device.numa)
            case SortKey.NUMA_DESCENDING:
                gpus.sort(key=lambda gpu: -gpu.device.numa)
            case SortKey.USED_DESCENDING:
                gpus.sort(key=lambda gpu: -gpu.replicas)
            case SortKey.INDEX:
                gpus.sort(key=lambda gpu: gpu.device.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeScore:
    """`total` is `10 * (replicas + cores + memory)`: each is the fraction of the node in use before the pod."""

    total: float
    replicas: float
    cores: float
    memory: float

    @property
    def used_percent(self) -> int:
        """Returns the mean of the three."""
        return round(100 * (self.replicas + self.cores + self.memory) / 3)


UNSCORED = NodeScore(total=0.0, replicas=0.0, cores=0.0, memory=0.0)
"""The score of a node without replicas, cores or memory."""


def node_score(gpus: Iterable[GpuUsage]) -> NodeScore:
    """Returns the score of all GPUs of a node together."""
    used_replicas = used_cores = used_mib = replicas = cores = mib = 0
    for gpu in gpus:
        device = gpu.device
        used_replicas += gpu.replicas
        used_cores += gpu.cores
        used_mib += gpu.memory_mib
        replicas += device.replicas
        cores += device.cores
        mib += device.memory_mib
    if not (replicas and cores and mib):
        return UNSCORED
    terms = _fraction(used_replicas, replicas), _fraction(used_cores, cores), _fraction(used_mib, mib)
    return NodeScore(total=_total(*terms), replicas=terms[0], cores=terms[1], memory=terms[2])


def _scored_mib(need: ContainerNeed, total_mib: int) -> int:
    """Returns the MiB that count for the score. Unlike in the reservation, the percentage wins over the absolute
    amount.
    """
    return need.memory_mib if need.memory_percentage is None else total_mib * need.memory_percentage // 100


_Term = tuple[int, int, int]
"""Used, total and weight."""


# The GPUs of a cluster are alike and in use alike: most of these have been computed before.
@lru_cache(maxsize=MOST_SCORES)
def _device_score(replicas: _Term, cores: _Term, memory: _Term) -> float:
    if not (replicas[1] and cores[1] and memory[1]):
        return 0.0
    return _total(_fraction(*replicas), _fraction(*cores), _fraction(*memory))


# The GPUs of a cluster are alike and in use alike: most of these have been computed before.
@lru_cache(maxsize=MOST_SCORES)
def _total(replicas: float, cores: float, memory: float) -> float:
    return _single(_single(_single(replicas + cores) + memory) * _FACTOR)


@lru_cache(maxsize=MOST_SCORES)
def _fraction(used: int, total: int, weight: int = 1) -> float:
    fraction = _single(_single(used) / _single(total))
    return fraction if weight == 1 else _single(fraction * _single(weight))


def _single(number: float) -> float:
    """Rounds to 32 bits. Rounding the 64-bit sum, product or quotient of 32-bit numbers once more is exact."""
    try:
        rounded: float = _SINGLE.unpack(_SINGLE.pack(number))[0]
    except OverflowError:
        return inf
    return rounded


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
