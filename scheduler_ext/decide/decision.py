"""Takes a decision: one node and the GPUs of every container, or why no node fits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from proto.devices import MIG_MODE, ContainerShares, DeviceShare, DeviceUUID, PodShares
from scheduler_ext.cluster.registered import UNREGISTERED
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage, Quota, Snapshot, quota_for
from scheduler_ext.decide.effort import Effort
from scheduler_ext.decide.fgd import Fragmentation
from scheduler_ext.decide.fit import Rules, fit
from scheduler_ext.decide.misfit import Misfit, NotOffered
from scheduler_ext.decide.other_choices import other_choices
from scheduler_ext.decide.preference import choose_node, compared_connections
from scheduler_ext.decide.score import NodeScore, node_score, sort_gpus
from scheduler_ext.decide.shared_ids import Sharing, with_shared_slots
from scheduler_ext.policies import NodePolicy
from scheduler_ext.requests import ContainerKind, ContainerNeed, GpuRequest

NO_NODE_OFFERED = "no node was offered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The result for each node asked about. `fits` has its score before this pod, `misfits` why the pod does not fit
    there.
    """

    node: str | None
    shares: PodShares = ()
    fits: Mapping[str, NodeScore] = field(default_factory=dict)
    misfits: Mapping[str, Misfit | NotOffered] = field(default_factory=dict)
    connections: Mapping[str, int] = field(default_factory=dict)
    """The sum of the pair scores between the GPUs that the pod would get, for nodes that fit, if links decide."""
    levels: Mapping[str, int] = field(default_factory=dict)
    """How good the placement is, from 0 to 100, for nodes that fit; only with node policy `fgd`."""
    error: str = ""
    """A sentence if no node was offered. Otherwise the nodes have their own reasons."""

    @property
    def scores(self) -> Mapping[str, float]:
        return {name: score.total for name, score in self.fits.items()}

    @property
    def failed(self) -> Mapping[str, str]:
        """The reason of each node that does not fit, in HAMi's words. Computed at each call."""
        return {name: misfit.reason for name, misfit in self.misfits.items()}


def decide(request: GpuRequest, snapshot: Snapshot, node_names: Sequence[str]) -> Decision:
    """Choose the best node of `node_names` that fits, as `choose_node` ranks them, and the pod's GPUs there."""
    quota = quota_for(request.quota_class, snapshot.quotas.get(request.namespace, ()))
    placed: dict[str, PodShares] = {}
    fits: dict[str, NodeScore] = {}
    misfits: dict[str, Misfit | NotOffered] = {}
    for name in node_names:
        usage = snapshot.nodes.get(name)
        if usage is None:
            misfits[name] = NotOffered(snapshot.unregistered.get(name, UNREGISTERED))
            continue
        shares = place(request, usage, quota)
        if isinstance(shares, Misfit):
            misfits[name] = shares
        else:
            placed[name] = shares
            fits[name] = node_score(usage.gpus)
    if not fits:
        error = "" if node_names else NO_NODE_OFFERED
        return Decision(node=None, misfits=misfits, error=error)
    connections = compared_connections(request, snapshot, placed)
    levels = _levels(request, snapshot, placed)
    node = choose_node(request.policies.node, fits, connections, levels)
    return Decision(node=node, shares=placed[node], fits=fits, misfits=misfits, connections=connections, levels=levels)


def _levels(request: GpuRequest, snapshot: Snapshot, placed: Mapping[str, PodShares]) -> Mapping[str, int]:
    """Levels of the nodes; empty unless the node policy is `fgd`."""
    if request.policies.node is not NodePolicy.FGD:
        return {}
    stranding = Fragmentation(snapshot.workload)
    return {
        name: stranding.level(request, stranding.site(snapshot.nodes[name], snapshot.hosts.get(name)), shares)
        for name, shares in placed.items()
    }


def place(
    request: GpuRequest, usage: NodeUsage, quota: Quota | None, effort: Effort | None = None
) -> PodShares | Misfit:
    """The GPUs of every container of the pod on this node, or why the first container that fails does not fit.

    Each container takes what the policy prefers, in the pod's order. If one fails then, the containers before it may
    leave room with other GPUs.
    """
    sharing: Sharing = {}
    if usage.node.slots and ContainerKind.INIT in request.kinds:
        request, sharing = with_shared_slots(request)
    rules = Rules(
        node=usage.node,
        filter=request.filter,
        policy=request.policies.gpu,
        numa_bound=request.numa_bound,
        effort=effort or Effort(),
    )
    placing = _Placing(request, usage, quota, rules)
    misfit = placing.add_all() or placing.gather_inits(sharing)
    if misfit is None:
        return tuple(placing.shares)
    # The first container that asks for GPUs had the whole choice.
    if any(placing.shares):
        for choice in other_choices(request, usage.gpus, rules, quota, failed=len(placing.shares)):
            placing = _Placing(request, usage, quota, rules)
            placing.add_all(choice)
            rules.effort.made += len(choice) * len(usage.gpus) // 2
            if placing.gather_inits(sharing) is None:
                return tuple(placing.shares)
    return misfit


class _Placing:
    """Places one pod on one node, container by container.

    App containers and sidecars add up on one copy of the node's GPUs. An init container sees that copy as it is when
    the container runs, and leaves nothing on it.
    """

    def __init__(self, request: GpuRequest, usage: NodeUsage, quota: Quota | None, rules: Rules) -> None:
        self.shares: list[ContainerShares] = []
        self._request = request
        self._inits: dict[int, tuple[list[GpuUsage], Quota | None]] = {}
        self._gpus = list(usage.gpus)
        self._quota = quota
        self._rules = rules

    def add_all(self, choice: PodShares = ()) -> Misfit | None:
        """Give every container its part of the choice; without one, what the policy prefers."""
        for position, need in enumerate(self._request.needs):
            misfit = self._add(position, need, choice[position] if choice else ())
            if misfit is not None:
                return misfit
        return None

    def _add(self, position: int, need: ContainerNeed | None, chosen: ContainerShares) -> Misfit | None:
        if need is None:
            self.shares.append(())
            return None
        lasting = self._request.kinds[position] is not ContainerKind.INIT
        gpus = self._gpus if lasting else list(self._gpus)
        sort_gpus(gpus, need, self._request)
        last = not any(self._request.needs[position + 1 :])
        shares = chosen or fit(need, gpus[::-1], self._rules, self._quota, last=last)
        if isinstance(shares, Misfit):
            return shares
        self.shares.append(shares)
        if lasting:
            _apply(gpus, shares)
            self._quota = None if self._quota is None else self._quota.charged(shares)
        else:
            self._inits[position] = (gpus, self._quota)
            _occupy(self._gpus, shares)
        return None

    def gather_inits(self, sharing: Sharing) -> Misfit | None:
        """Move init containers to the GPUs of the pod's other containers where they must share or where they fit.

        Kubelet gives an init container's device ids to later containers, so GPUs that the pod has anyway are best.
        """
        lasting = {share.uuid for n, shares in enumerate(self.shares) if n not in self._inits for share in shares}
        for position, (gpus, quota) in self._inits.items():
            self._rules.effort.made += len(gpus)
            need = self._request.needs[position]
            if position in sharing and need is not None:
                there = self.shares[sharing[position]]
                same = [gpu for gpu in gpus if gpu.device.uuid in _uuids(there) and gpu.device.mode != MIG_MODE]
                # A sidecar that starts after an earlier init container may have left too little for this one.
                misfit = fit(need, same, self._rules, quota) if same and sharing[position] < position else None
                if isinstance(misfit, Misfit):
                    return misfit
                self.shares[position] = there
                continue
            own = [gpu for gpu in reversed(gpus) if gpu.device.uuid in lasting and gpu.device.mode != MIG_MODE]
            if need is None or len(own) < need.count or _uuids(self.shares[position]) <= lasting:
                continue
            shares = fit(need, own, self._rules, quota)
            if not isinstance(shares, Misfit):
                self.shares[position] = shares
        return None


def _apply(gpus: list[GpuUsage], shares: ContainerShares) -> None:
    for share in shares:
        position = _position(gpus, share)
        gpus[position] = gpus[position].plus(share)


def _occupy(gpus: list[GpuUsage], shares: ContainerShares) -> None:
    """Keep the placements of an init container's MIG instances: they exist as long as its pod does."""
    for share in shares:
        if share.instance is not None:
            position = _position(gpus, share)
            gpus[position] = gpus[position].occupied(share.instance)


def _position(gpus: list[GpuUsage], share: DeviceShare) -> int:
    return next(position for position, gpu in enumerate(gpus) if gpu.device.uuid == share.uuid)


def _uuids(shares: ContainerShares) -> set[DeviceUUID]:
    return {share.uuid for share in shares}
