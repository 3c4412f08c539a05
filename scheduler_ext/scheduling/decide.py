"""The decision: one node and the GPUs of every container, or why no node fits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from proto.devices import ContainerShares, DeviceUUID, PodShares
from scheduler_ext.cluster.registered import UNREGISTERED
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage, Quota, Snapshot
from scheduler_ext.policies import NodePolicy, SortKey, Weights
from scheduler_ext.requests import ContainerKind, ContainerNeed, GpuRequest
from scheduler_ext.scheduling.fit import Charge, Misfit, Rules, fit
from scheduler_ext.scheduling.score import device_score, node_score


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """`scores` are of the nodes that fit, before this pod; `failed` says why each other node does not."""

    node: str | None
    shares: PodShares = ()
    scores: Mapping[str, float] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    """A sentence for an empty list of nodes; otherwise the nodes' own reasons speak."""


def decide(request: GpuRequest, snapshot: Snapshot, node_names: Sequence[str]) -> Decision:
    """Among `node_names` the fullest or emptiest node that fits; of equal ones the first by name."""
    quota = snapshot.quotas.get(request.namespace)
    fitting: dict[str, PodShares] = {}
    scores: dict[str, float] = {}
    failed: dict[str, str] = {}
    for name in node_names:
        usage = snapshot.nodes.get(name)
        if usage is None:
            failed[name] = snapshot.unregistered.get(name, UNREGISTERED)
            continue
        placed = place(request, usage, quota)
        if isinstance(placed, Misfit):
            failed[name] = placed.reason
        else:
            fitting[name] = placed
            scores[name] = node_score(usage.gpus)
    if not fitting:
        error = "" if node_names else "no node was offered"
        return Decision(node=None, failed=failed, error=error)
    node = _best_node(scores, request.policies.node)
    return Decision(node=node, shares=fitting[node], scores=scores, failed=failed)


def place(request: GpuRequest, usage: NodeUsage, quota: Quota | None) -> PodShares | Misfit:
    """The GPUs of every container of the pod on this node, or why the first container that fails does."""
    placed = _Placing(request, usage, quota)
    for position, need in enumerate(request.needs):
        misfit = placed.add(position, need)
        if misfit is not None:
            return misfit
    placed.gather_inits()
    return tuple(placed.shares)


class _Placing:
    """One pod on one node, container by container.

    App containers and sidecars add up on one copy of the node's GPUs; an init container sees that copy as it stands
    when it runs and leaves nothing on it.
    """

    def __init__(self, request: GpuRequest, usage: NodeUsage, quota: Quota | None) -> None:
        self.shares: list[ContainerShares] = []
        self._request = request
        self._inits: dict[int, tuple[list[GpuUsage], Charge]] = {}
        self._gpus = list(usage.gpus)
        self._charge = Charge()
        self._rules = Rules(
            node=usage.node,
            filter=request.filter,
            policy=request.policies.gpu,
            numa_bound=request.numa_bound,
            quota=quota,
        )

    def add(self, position: int, need: ContainerNeed | None) -> Misfit | None:
        if need is None:
            self.shares.append(())
            return None
        lasting = self._request.kinds[position] is not ContainerKind.INIT
        gpus = self._gpus if lasting else list(self._gpus)
        sort_gpus(gpus, need, self._request)
        shares = fit(need, gpus[::-1], self._rules, self._charge)
        if isinstance(shares, Misfit):
            return shares
        self.shares.append(shares)
        if lasting:
            _apply(gpus, shares)
            self._charge = self._charge.plus(shares)
        else:
            self._inits[position] = (gpus, self._charge)
        return None

    def gather_inits(self) -> None:
        """Move init containers to the GPUs of the pod's other containers where they fit there.

        Kubelet hands an init container's device ids on to the app containers, so a pod is best served by the same GPUs.
        """
        lasting = {share.uuid for n, shares in enumerate(self.shares) if n not in self._inits for share in shares}
        for position, (gpus, charge) in self._inits.items():
            need = self._request.needs[position]
            own = [gpu for gpu in reversed(gpus) if gpu.device.uuid in lasting]
            if need is None or len(own) < need.count or _uuids(self.shares[position]) <= lasting:
                continue
            shares = fit(need, own, self._rules, charge)
            if not isinstance(shares, Misfit):
                self.shares[position] = shares


def sort_gpus(gpus: list[GpuUsage], need: ContainerNeed, request: GpuRequest) -> None:
    """In place, stable, ascending by the policy's keys: the last one is to be tried first."""
    policy = request.policies.gpu
    keys = policy.bound_keys if request.numa_bound else policy.keys
    weights = request.policies.weights
    ranks = {gpu.device.uuid: tuple(_rank(key, gpu, need, weights) for key in keys) for gpu in gpus}
    gpus.sort(key=lambda gpu: ranks[gpu.device.uuid])


def _rank(key: SortKey, gpu: GpuUsage, need: ContainerNeed, weights: Weights) -> float:
    match key:
        case SortKey.SCORE:
            return device_score(gpu, need, weights)
        case SortKey.SCORE_DESCENDING:
            return -device_score(gpu, need, weights)
        case SortKey.NUMA:
            return gpu.device.numa
        case SortKey.NUMA_DESCENDING:
            return -gpu.device.numa
        case SortKey.USED_DESCENDING:
            return -gpu.slots
        case SortKey.INDEX:
            return gpu.device.index


def _apply(gpus: list[GpuUsage], shares: ContainerShares) -> None:
    by_uuid = {share.uuid: share for share in shares}
    for position, gpu in enumerate(gpus):
        share = by_uuid.get(gpu.device.uuid)
        if share is not None:
            gpus[position] = gpu.plus(share.memory_mib, share.cores)


def _uuids(shares: ContainerShares) -> set[DeviceUUID]:
    return {share.uuid for share in shares}


def _best_node(scores: Mapping[str, float], policy: NodePolicy) -> str:
    sign = 1 if policy is NodePolicy.SPREAD else -1
    return min(scores, key=lambda name: (sign * scores[name], name))
