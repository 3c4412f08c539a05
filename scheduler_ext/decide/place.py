"""Places a pod on one node: the GPUs of each container, or why the first container that fails does not fit."""

from collections.abc import Sequence
from dataclasses import replace

from msgspec.structs import replace as with_fields

from proto.devices import MIG_MODE, ContainerShares, DeviceShare, DeviceUUID, PodShares
from scheduler_ext.cluster.accounting import effective
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage, Quota
from scheduler_ext.decide.alignment import KubeletRefusal, Zones, free_cpus_with, zones_of
from scheduler_ext.decide.effort import Effort
from scheduler_ext.decide.fit import Rules, cards_of, fit
from scheduler_ext.decide.misfit import Misfit
from scheduler_ext.decide.other_choices import other_choice
from scheduler_ext.decide.reasons import Reason
from scheduler_ext.decide.score import sort_gpus
from scheduler_ext.requests import ContainerKind, ContainerNeed, GpuRequest


def place(
    request: GpuRequest, usage: NodeUsage, quota: Quota | None, effort: Effort | None = None
) -> PodShares | Misfit:
    """Returns the GPUs of every container of the pod on this node, or why the first container that fails does not fit.

    Each container takes what the policy prefers, in the pod's order. If one fails then, the containers before it may
    leave room with other GPUs.
    """
    rules = Rules(
        node=usage.node,
        filter=request.filter,
        policy=request.policies.gpu,
        numa_bound=request.numa_bound,
        effort=effort or Effort(),
    )
    zones = zones_of(request, usage) if usage.free_cpus else None
    if isinstance(zones, KubeletRefusal):
        return _refused(request, usage, zones)
    found = _placed(request, usage, quota, rules, zones)
    if zones is None or not isinstance(found, Misfit) or usage.node.numa is None or usage.node.numa.policy.refuses:
        return found
    return _placed(request, usage, quota, rules, None)


def _placed(
    request: GpuRequest, usage: NodeUsage, quota: Quota | None, rules: Rules, zones: Sequence[Zones] | None
) -> PodShares | Misfit:
    by_container = [rules if zones is None else replace(rules, zones=zones[at]) for at in range(len(request.needs))]
    placing = _Placing(request, usage, quota, by_container)
    misfit = placing.add_all()
    if misfit is None:
        placing.gather_inits()
        return tuple(placing.shares)
    # Without shares the first container that requests GPUs has failed, and it had the whole choice. The search knows
    # one rule for all containers.
    if any(placing.shares) and (zones is None or len(set(zones)) == 1):
        choice = other_choice(request, usage.gpus, by_container[0], quota, failed=len(placing.shares))
        if choice is not None:
            placing = _Placing(request, usage, quota, by_container)
            placing.add_all(choice)
            rules.effort.made += len(choice) * len(usage.gpus) // 2
            placing.gather_inits()
            return tuple(placing.shares)
    return misfit


def with_pod(usage: NodeUsage, request: GpuRequest, shares: PodShares) -> NodeUsage:
    """Returns the node as it is once the pod runs there."""
    parts = effective(request.kinds, shares)
    placed = [share for container in shares for share in container if share.instance is not None]

    def taken(gpu: GpuUsage) -> GpuUsage:
        part = parts.get(gpu.device.uuid)
        if part is None:
            return gpu
        for share in placed:
            if share.uuid == gpu.device.uuid:
                gpu = gpu.occupied(share.instance)
        return with_fields(
            gpu,
            replicas=gpu.replicas + part.replicas,
            memory_mib=gpu.memory_mib + part.memory_mib,
            cores=gpu.cores + part.cores,
        )

    return replace(usage, gpus=tuple(map(taken, usage.gpus)), free_cpus=free_cpus_with(usage, request, shares))


def _refused(request: GpuRequest, usage: NodeUsage, refused: KubeletRefusal) -> Misfit:
    """Returns why kubelet would refuse the pod, named by its first container with GPUs from the refused one on."""
    needs = [need for need in (*request.needs[refused.position :], *request.needs) if need is not None]
    cards = cards_of(usage.gpus)
    reason = Reason.NUMA_CHANGES if refused.is_changing else Reason.CPUS_APART
    if not refused.is_changing and not isinstance(zones_of(request, _unshared(usage)), KubeletRefusal):
        reason = Reason.REPLICAS_APART
    return Misfit(need=needs[0], cards=len(cards), verdicts=[(gpu, reason) for gpu in cards])


def _unshared(usage: NodeUsage) -> NodeUsage:
    """Returns the node as if each GPU had one replica."""
    gpus = (
        with_fields(gpu, device=replace(gpu.device, replicas=1), replicas=min(gpu.replicas, 1)) for gpu in usage.gpus
    )
    return replace(usage, gpus=tuple(gpus))


EFFORT_OF_A_POD = 8
"""Effort for choosing a pod's GPUs, in addition to what the containers take."""
MOST_PODS_ON = 32
"""The most pods of one node that are counted."""
EFFORT_OF_PODS_ON = 1_000
"""The effort for counting the pods of one node, after the first. Beyond that there may be room for more."""


def pods_on(usage: NodeUsage, request: GpuRequest, effort: Effort) -> int:
    """Returns how many pods with this request surely fit on the node one after the other. No quota counts."""
    most = effort.made + EFFORT_OF_PODS_ON
    for number in range(MOST_PODS_ON):
        effort.made += EFFORT_OF_A_POD
        shares = place(request, usage, None, effort)
        if isinstance(shares, Misfit) or effort.made >= most:
            return number + (not isinstance(shares, Misfit))
        usage = with_pod(usage, request, shares)
    return MOST_PODS_ON


class _Placing:
    """Places one pod on one node, container by container.

    App containers and sidecars add up on one copy of the node's GPUs. An init container sees that copy as it is when
    the container runs, and leaves nothing on it.
    """

    def __init__(self, request: GpuRequest, usage: NodeUsage, quota: Quota | None, rules: Sequence[Rules]) -> None:
        """`rules` are those for each container."""
        self.shares: list[ContainerShares] = []
        self._request = request
        self._inits: dict[int, tuple[list[GpuUsage], Quota | None]] = {}
        self._gpus = list(usage.gpus)
        self._quota = quota
        self._rules = rules

    def add_all(self, choice: PodShares = ()) -> Misfit | None:
        """Gives every container its part of the choice; without one, what the policy prefers."""
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
        shares = chosen or fit(need, gpus[::-1], self._rules[position], self._quota, last=last)
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

    def gather_inits(self) -> None:
        """Moves init containers to the GPUs of the pod's other containers where they fit.

        Kubelet gives an init container's device ids to later containers, so GPUs that the pod has anyway are best.
        """
        lasting = {share.uuid for n, shares in enumerate(self.shares) if n not in self._inits for share in shares}
        for position, (gpus, quota) in self._inits.items():
            self._rules[position].effort.made += len(gpus)
            need = self._request.needs[position]
            own = [gpu for gpu in reversed(gpus) if gpu.device.uuid in lasting and gpu.device.mode != MIG_MODE]
            if need is None or len(own) < need.count or _uuids(self.shares[position]) <= lasting:
                continue
            shares = fit(need, own, self._rules[position], quota)
            if not isinstance(shares, Misfit):
                self.shares[position] = shares


def _apply(gpus: list[GpuUsage], shares: ContainerShares) -> None:
    for share in shares:
        position = _position(gpus, share)
        gpus[position] = gpus[position].plus(share)


def _occupy(gpus: list[GpuUsage], shares: ContainerShares) -> None:
    """Keeps the placements of an init container's MIG instances: they exist as long as its pod does."""
    for share in shares:
        if share.instance is not None:
            position = _position(gpus, share)
            gpus[position] = gpus[position].occupied(share.instance)


def _position(gpus: list[GpuUsage], share: DeviceShare) -> int:
    return next(position for position, gpu in enumerate(gpus) if gpu.device.uuid == share.uuid)


def _uuids(shares: ContainerShares) -> set[DeviceUUID]:
    return {share.uuid for share in shares}
