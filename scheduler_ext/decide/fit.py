"""Decides whether and where one container fits on a node's GPUs."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from proto.annotations.node_limits import unheld
from proto.devices import (
    MIG_MODE,
    VENDOR,
    ContainerShares,
    DeviceShare,
    MigInstance,
    MigPlacement,
    MigProfile,
    PairScores,
)
from scheduler_ext.cluster.accounting import NOTHING, Footprint
from scheduler_ext.cluster.registered import RegisteredNode
from scheduler_ext.cluster.snapshot import GpuUsage, Quota
from scheduler_ext.decide.effort import Effort
from scheduler_ext.decide.misfit import Misfit, Verdict
from scheduler_ext.decide.reasons import Reason
from scheduler_ext.decide.topology import best_connected, connection, least_connected, pair_matrix
from scheduler_ext.policies import GpuPolicy
from scheduler_ext.requests import ContainerNeed, DeviceFilter

MIG_EFFORT = 20
"""Effort for judging one GPU in MIG mode: each placement of its instances is tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules for every container of one pod on one node, and the effort made so far."""

    node: RegisteredNode
    filter: DeviceFilter
    policy: GpuPolicy
    numa_bound: bool
    zones: frozenset[int] | None = None
    """The NUMA nodes of which the container's GPUs must be, because kubelet puts its CPUs there; None for any."""
    effort: Effort = field(default_factory=Effort)


def fit(
    need: ContainerNeed, visited: Sequence[GpuUsage], rules: Rules, quota: Quota | None, *, last: bool = True
) -> ContainerShares | Misfit:
    """Returns the GPUs of the container, or why there are too few.

    `visited` are the node's GPUs, most preferred first. `quota` counts the pod's other running containers as used. Each
    GPU is taken at most once; a GPU in MIG mode as often as it has room for an instance.

    A topology-aware policy takes the best-connected of all GPUs that fit; `fgd` does so for several GPUs. Other
    policies take the first ones that fit. Among equally well connected choices, the `last` container of a pod takes the
    one with the best remainder. Earlier containers do not: the same pod takes more GPUs next.
    """
    rules.effort.made += 2 + len(visited) * (1 + len(rules.policy.keys)) // 4
    cards = cards_of(visited)
    if need.count > len(cards) and not _may_use_mig(cards, rules.filter):
        return Misfit(need=need, cards=len(cards))
    if rules.policy.topology_aware or (rules.policy.packs and need.count > 1):
        return _fit_connected(need, cards, rules, quota, last=last)
    return _fit_first(need, cards, rules, quota)


def cards_of(gpus: Sequence[GpuUsage]) -> list[GpuUsage]:
    """Returns the GPUs that are NVIDIA's."""
    return [gpu for gpu in gpus if VENDOR in gpu.device.type or VENDOR.lower() in gpu.device.type.lower()]


def _fit_first(
    need: ContainerNeed, cards: Sequence[GpuUsage], rules: Rules, quota: Quota | None
) -> ContainerShares | Misfit:
    verdicts: list[Verdict] = []
    chosen: list[GpuUsage] = []
    taken: list[DeviceShare] = []
    beside = NOTHING
    numa: int | None = None
    waiting = list(reversed(cards))
    while waiting:
        gpu = waiting.pop()
        rules.effort.made += _looks(gpu, quota)
        reason = _refused_by_pod_or_node(gpu, need, rules)
        if reason is None and rules.numa_bound and gpu.device.numa != numa:
            verdicts += ((other, Reason.NUMA) for other in chosen)
            chosen, taken, beside, numa = [], [], NOTHING, gpu.device.numa
        reason = reason or _refused(gpu, need, rules, quota, beside)
        if reason is not None:
            verdicts.append((gpu, reason))
            continue
        chosen.append(gpu)
        taken.append(share_of(gpu, need))
        if len(taken) == need.count:
            return tuple(taken)
        if quota is not None:
            beside += _counted(taken[-1])
        if gpu.device.mode == MIG_MODE:
            waiting.append(gpu.occupied(taken[-1].instance))
    verdicts += ((gpu, Reason.TOO_FEW) for gpu in chosen)
    return Misfit(need=need, cards=len(cards), verdicts=verdicts, quota=quota, limits=rules.node.limits)


def _fit_connected(
    need: ContainerNeed, cards: Sequence[GpuUsage], rules: Rules, quota: Quota | None, *, last: bool
) -> ContainerShares | Misfit:
    verdicts: list[Verdict] = []
    groups: dict[int, list[GpuUsage]] = {}
    one_group = not rules.numa_bound or need.count == 1
    companions = None if quota is None else _smallest_companions(need, cards)
    beside: dict[int, Footprint] = {}
    waiting = list(reversed(cards))
    while waiting:
        gpu = waiting.pop()
        rules.effort.made += _looks(gpu, quota)
        numa = 0 if one_group else gpu.device.numa
        group = groups.setdefault(numa, [])
        reason = _refused_by_pod_or_node(gpu, need, rules) or _refused(
            gpu, need, rules, quota, companions or beside.get(numa, NOTHING)
        )
        if reason is not None:
            verdicts.append((gpu, reason))
            continue
        group.append(gpu)
        if quota is not None and len(group) < need.count:
            beside[numa] = beside.get(numa, NOTHING) + _counted(share_of(gpu, need))
        if gpu.device.mode == MIG_MODE:
            waiting.append(gpu.occupied(share_of(gpu, need).instance))
    large = [[share_of(gpu, need) for gpu in group] for group in groups.values() if len(group) >= need.count]
    feasible = [choice for group in large if (choice := _connected(need, group, rules, quota, last=last)) is not None]
    if len(feasible) == 1:
        return feasible[0]
    if feasible:
        rules.effort.made += len(cards) ** 2 // 4
        scores = rules.node.pair_scores
        return max(feasible, key=lambda choice: (connection(choice, scores), _left_connected(large, choice, scores)))
    verdicts += _left_over([group for group in groups.values() if group], over_quota=bool(large))
    return Misfit(need=need, cards=len(cards), verdicts=verdicts, quota=quota, limits=rules.node.limits)


def _looks(gpu: GpuUsage, quota: Quota | None) -> int:
    """Returns the effort for one GPU. A check of the quota takes as long as all the rest."""
    return MIG_EFFORT if gpu.device.mode == MIG_MODE else 1 if quota is None else 2


def _left_over(groups: Sequence[Sequence[GpuUsage]], *, over_quota: bool) -> list[Verdict]:
    """Returns verdicts on GPUs that fit alone, but no choice of them is within the quota, or each group has too few."""
    if over_quota:
        return [(gpu, Reason.QUOTA) for group in groups for gpu in group]
    return [(gpu, Reason.TOO_FEW if group is groups[-1] else Reason.NUMA) for group in groups for gpu in group]


def _smallest_companions(need: ContainerNeed, cards: Sequence[GpuUsage]) -> Footprint | None:
    """Returns the least that the other GPUs of a choice count against the quota; None where all shares have the same
    size.
    """
    if len({gpu.device.memory_mib for gpu in cards}) <= 1 and all(gpu.device.mode != MIG_MODE for gpu in cards):
        return None
    shares = sorted((share_of(gpu, need) for gpu in cards), key=lambda share: share.memory_mib)
    if shares[0].memory_mib == shares[-1].memory_mib:
        return None
    others = need.count - 1
    return Footprint(others, others * shares[0].memory_mib, others * shares[0].cores)


def _counted(share: DeviceShare) -> Footprint:
    """Returns what the share counts against a quota."""
    return Footprint(1, share.memory_mib, share.cores)


def _connected(
    need: ContainerNeed, group: list[DeviceShare], rules: Rules, quota: Quota | None, *, last: bool
) -> ContainerShares | None:
    """Returns the best-connected shares of a group; None if the quota covers no choice."""
    if need.count == 1:
        rules.effort.made += len(group) ** 2 // 12
        return (group[least_connected(rules.node.pair_scores, [share.uuid for share in group])],)
    if len(group) == need.count and within_quota(group, quota):
        return tuple(group)
    rules.effort.made += len(group) ** 2 // 8
    matrix = pair_matrix(rules.node.pair_scores, [share.uuid for share in group])
    costs = [share.memory_mib for share in group]
    budget = None
    if quota is not None and quota.memory_mib is not None and len(set(costs)) > 1:
        budget = quota.memory_mib - quota.used.memory_mib
    chosen = best_connected(matrix, need.count, costs, budget, weigh_remainder=last, effort=rules.effort)
    return None if chosen is None else tuple(group[position] for position in chosen)


def within_quota(shares: Sequence[DeviceShare], quota: Quota | None) -> bool:
    """Returns whether the quota covers these shares together."""
    return quota is None or quota.admits(
        sum(share.memory_mib for share in shares), sum(share.cores for share in shares), len(shares)
    )


def _left_connected(groups: Sequence[Sequence[DeviceShare]], choice: ContainerShares, scores: PairScores) -> int:
    """Returns how well connected the rest is after a choice from one of the groups, as a sum of pair scores."""
    return connection([share for group in groups for share in group if share not in choice], scores)


def why_not(gpu: GpuUsage, need: ContainerNeed, rules: Rules, quota: Quota | None) -> Reason | None:
    """Returns why this GPU alone does not serve the container; None if it does."""
    return _refused_by_pod_or_node(gpu, need, rules) or _refused(gpu, need, rules, quota, NOTHING)


def _refused_by_pod_or_node(gpu: GpuUsage, need: ContainerNeed, rules: Rules) -> Reason | None:
    """Returns the reason of the checks that come before a NUMA group is opened; None if the GPU passes them."""
    device, wanted = gpu.device, rules.filter
    if not device.healthy:
        return Reason.NOT_HEALTHY
    if device.uuid in rules.node.cordoned:
        return Reason.CORDONED
    is_other_type = (wanted.types is not None or wanted.refused_types) and not wanted.allows_type(device.type)
    if is_other_type or (wanted.modes is not None and device.mode not in wanted.modes):
        return Reason.TYPE
    if rules.zones is not None and device.numa not in rules.zones:
        return Reason.APART
    refused = unheld(rules.node.limits, several=need.count > 1, lifted=bool(need.lifted_by))
    if (refused.memory and device.is_part_of_memory(need.reserved_mib(device.memory_mib))) or (
        refused.cores and device.is_part_of_cores(need.reserved_cores)
    ):
        return Reason.LIMITS
    return None


def _refused(gpu: GpuUsage, need: ContainerNeed, rules: Rules, quota: Quota | None, beside: Footprint) -> Reason | None:
    """Returns the first reason, in HAMi's order, why the container may not use this GPU. `beside` counts against the
    quota.
    """
    device, wanted = gpu.device, rules.filter
    memory_mib = need.reserved_mib(device.memory_mib)
    if (wanted.uuids is not None and device.uuid not in wanted.uuids) or device.uuid in wanted.refused_uuids:
        return Reason.UUID
    if gpu.replicas >= device.replicas:
        return Reason.REPLICAS
    if rules.policy.idle_only and gpu.replicas:
        return Reason.EXCLUSIVE
    if quota is not None and not _is_covered(gpu, need, quota, beside):
        return Reason.QUOTA
    if device.memory_mib - gpu.memory_mib < memory_mib:
        return Reason.MEMORY
    return _refused_for_cores(gpu, need)


def _is_covered(gpu: GpuUsage, need: ContainerNeed, quota: Quota, beside: Footprint) -> bool:
    memory_mib, cores = need.reserved_mib(gpu.device.memory_mib), need.reserved_cores
    if gpu.device.mode == MIG_MODE:
        share = share_of(gpu, need)
        memory_mib, cores = share.memory_mib, share.cores
    return quota.admits(beside.memory_mib + memory_mib, beside.cores + cores, beside.replicas + 1)


def _refused_for_cores(gpu: GpuUsage, need: ContainerNeed) -> Reason | None:
    device = gpu.device
    if device.cores - gpu.cores < need.reserved_cores:
        return Reason.CORES
    if device.cores == 100 and need.reserved_cores == 100 and gpu.replicas:
        return Reason.EXCLUSIVE
    if device.cores and gpu.cores >= device.cores and need.reserved_cores == 0:
        return Reason.CORES_EXHAUSTED
    return Reason.MIG if device.mode == MIG_MODE and share_of(gpu, need).instance is None else None


def _may_use_mig(cards: Sequence[GpuUsage], wanted: DeviceFilter) -> bool:
    """Returns whether a GPU in MIG mode is among them: it may serve a container several times."""
    return (wanted.modes is None or MIG_MODE in wanted.modes) and any(gpu.device.mode == MIG_MODE for gpu in cards)


def share_of(gpu: GpuUsage, need: ContainerNeed) -> DeviceShare:
    """Returns the share that the container takes. Of a GPU in MIG mode that is a whole instance, while one is free."""
    device = gpu.device
    memory_mib = need.reserved_mib(device.memory_mib)
    instance = instance_share(gpu, memory_mib) if device.mode == MIG_MODE else None
    return instance or DeviceShare(uuid=device.uuid, memory_mib=memory_mib, cores=need.reserved_cores)


_FROM_THE_END = ("1g.", "3g.")
"""Small and half-sized instances start at the far end, which keeps the near end free for larger ones."""


def instance_share(gpu: GpuUsage, memory_mib: int) -> DeviceShare | None:
    """Returns a share of the smallest free instance with that much memory; None without one. It has the instance's own
    memory and cores.
    """
    for profile, placement in _candidates(gpu.device.mig_profiles, memory_mib):
        if is_free(placement, gpu.placements):
            instance = MigInstance(profile=profile.name, placement=placement)
            return DeviceShare(
                uuid=gpu.device.uuid, memory_mib=profile.memory_mib, cores=profile.cores, instance=instance
            )
    return None


def is_free(placement: MigPlacement, occupied: Collection[MigPlacement]) -> bool:
    return not any(placement.overlaps(other) for other in occupied)


def _candidates(profiles: Collection[MigProfile], memory_mib: int) -> Iterator[tuple[MigProfile, MigPlacement]]:
    """Yields profiles with enough memory and their placements, in the order in which they are tried."""
    for profile in sorted(profiles, key=lambda each: (each.memory_mib, each.slice_count)):
        if profile.memory_mib >= memory_mib:
            backwards = profile.name.startswith(_FROM_THE_END)
            for placement in sorted(profile.placements, key=lambda each: each.start, reverse=backwards):
                yield profile, placement
