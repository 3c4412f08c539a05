"""Whether and where one container fits on a node's GPUs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from proto.devices import VENDOR, ContainerShares, DeviceShare
from scheduler_ext.cluster.registered import RegisteredNode
from scheduler_ext.cluster.snapshot import GpuUsage, Quota
from scheduler_ext.policies import GpuPolicy
from scheduler_ext.requests import ContainerNeed, DeviceFilter
from scheduler_ext.scheduling.topology import best_connected, least_connected, pair_matrix

_MIG = "mig"


class Reason(StrEnum):
    """Why a GPU, or a node, does not do; the words of HAMi's failure texts."""

    NODE_INSUFFICIENT_DEVICE = "NodeInsufficientDevice"
    NOT_HEALTHY = "CardNotHealth"
    CORDONED = "CardCordoned"
    TYPE = "CardTypeMismatch"
    UUID = "CardUuidMismatch"
    SLOTS = "CardTimeSlicingExhausted"
    EXCLUSIVE = "ExclusiveDeviceAllocateConflict"
    QUOTA = "ResourceQuotaNotFit"
    MEMORY = "CardInsufficientMemory"
    CORES = "CardInsufficientCore"
    CORES_EXHAUSTED = "CardComputeUnitsExhausted"
    MIG = "CardMigTopologyInfeasible"
    NUMA = "NumaNotFit"
    TOO_FEW = "AllocatedCardsInsufficientRequest"


@dataclass(frozen=True, slots=True)
class Misfit:
    """`2/4 CardInsufficientMemory, …`: of the node's GPUs, how many fail for which reason."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What holds for every container of one pod on one node."""

    node: RegisteredNode
    filter: DeviceFilter
    policy: GpuPolicy
    numa_bound: bool
    quota: Quota | None


@dataclass(frozen=True, slots=True)
class Charge:
    """What the pod's other running containers already count against its namespace's quota."""

    memory_mib: int = 0
    cores: int = 0

    def plus(self, shares: ContainerShares) -> "Charge":
        return Charge(
            self.memory_mib + sum(share.memory_mib for share in shares),
            self.cores + sum(share.cores for share in shares),
        )


def fit(need: ContainerNeed, visited: Sequence[GpuUsage], rules: Rules, charge: Charge) -> ContainerShares | Misfit:
    """The GPUs of the container, or why there are too few.

    `visited` are the node's GPUs, most preferred first. Each GPU is taken at most once. With a topology-aware policy
    all GPUs that fit are candidates and the best-connected ones are taken, otherwise the first ones that fit.
    """
    cards = [gpu for gpu in visited if VENDOR.lower() in gpu.device.type.lower()]
    if need.count > len(cards) and not _may_use_mig(cards, rules.filter):
        return Misfit(Reason.NODE_INSUFFICIENT_DEVICE)
    if rules.policy.topology_aware:
        return _fit_connected(need, cards, rules, charge)
    return _fit_first(need, cards, rules, charge)


def _fit_first(need: ContainerNeed, cards: list[GpuUsage], rules: Rules, charge: Charge) -> ContainerShares | Misfit:
    reasons: Counter[Reason] = Counter()
    taken: list[DeviceShare] = []
    numa: int | None = None
    for gpu in cards:
        reason = _refused_by_pod_or_node(gpu, rules)
        if reason is None and rules.numa_bound and gpu.device.numa != numa:
            reasons[Reason.NUMA] += len(taken)
            taken, numa = [], gpu.device.numa
        reason = reason or _refused(gpu, need, rules, charge, taken)
        if reason is not None:
            reasons[reason] += 1
            continue
        taken.append(_share(gpu, need))
        if len(taken) == need.count:
            return tuple(taken)
    reasons[Reason.TOO_FEW] = len(taken)
    return _misfit(reasons, len(cards))


def _fit_connected(
    need: ContainerNeed, cards: list[GpuUsage], rules: Rules, charge: Charge
) -> ContainerShares | Misfit:
    reasons: Counter[Reason] = Counter()
    groups: dict[int, list[DeviceShare]] = {}
    one_group = not rules.numa_bound or need.count == 1
    companions = _smallest_companions(need, cards)
    for gpu in cards:
        group = groups.setdefault(0 if one_group else gpu.device.numa, [])
        reason = _refused_by_pod_or_node(gpu, rules) or _refused(
            gpu, need, rules, charge, companions or group[: need.count - 1]
        )
        if reason is None:
            group.append(_share(gpu, need))
        else:
            reasons[reason] += 1
    choices = [_connected(need, group, rules, charge) for group in groups.values() if len(group) >= need.count]
    feasible = [choice for choice in choices if choice is not None]
    if feasible:
        return max(feasible, key=lambda choice: _connection(choice, rules))
    if choices:
        reasons[Reason.QUOTA] += sum(map(len, groups.values()))
        return _misfit(reasons, len(cards))
    *others, last = (len(group) for group in groups.values() if group) if any(groups.values()) else (0,)
    reasons[Reason.NUMA] = sum(others)
    reasons[Reason.TOO_FEW] = last
    return _misfit(reasons, len(cards))


def _smallest_companions(need: ContainerNeed, cards: list[GpuUsage]) -> tuple[DeviceShare, ...]:
    """Where shares differ in size: the least the other GPUs of a choice can count against the quota."""
    shares = sorted((_share(gpu, need) for gpu in cards), key=lambda share: share.memory_mib)
    same = shares[0].memory_mib == shares[-1].memory_mib if shares else True
    return () if same else tuple(shares[:1] * (need.count - 1))


def _connected(need: ContainerNeed, group: list[DeviceShare], rules: Rules, charge: Charge) -> ContainerShares | None:
    """The best-connected shares of a group, None when the quota covers no choice."""
    if need.count == 1:
        return (group[least_connected(rules.node.pair_scores, [share.uuid for share in group])],)
    if len(group) == need.count and _within_quota(group, rules, charge):
        return tuple(group)
    matrix = pair_matrix(rules.node.pair_scores, [share.uuid for share in group])
    costs = [share.memory_mib for share in group]
    quota = rules.quota
    if quota is None or quota.memory_mib is None or len(set(costs)) == 1:
        chosen = best_connected(matrix, need.count)
    else:
        budget = quota.memory_mib - quota.used.memory_mib - charge.memory_mib
        chosen = best_connected(matrix, need.count, costs, budget)
    return None if chosen is None else tuple(group[position] for position in chosen)


def _within_quota(shares: Sequence[DeviceShare], rules: Rules, charge: Charge) -> bool:
    after = charge.plus(tuple(shares))
    return rules.quota is None or rules.quota.admits(after.memory_mib, after.cores)


def _connection(choice: ContainerShares, rules: Rules) -> int:
    """The sum of the pair scores inside a choice."""
    scores = rules.node.pair_scores
    return sum(
        scores.get(share.uuid, {}).get(peer.uuid, 0) for n, share in enumerate(choice) for peer in choice[n + 1 :]
    )


def _refused_by_pod_or_node(gpu: GpuUsage, rules: Rules) -> Reason | None:
    """The checks that come before a NUMA group is opened."""
    device, wanted = gpu.device, rules.filter
    if not device.healthy:
        return Reason.NOT_HEALTHY
    if device.uuid in rules.node.cordoned:
        return Reason.CORDONED
    model = device.type.lower()
    if wanted.types is not None and not any(word in model for word in wanted.types):
        return Reason.TYPE
    if any(word in model for word in wanted.refused_types):
        return Reason.TYPE
    if wanted.modes is not None and device.mode not in wanted.modes:
        return Reason.TYPE
    return None


def _refused(
    gpu: GpuUsage, need: ContainerNeed, rules: Rules, charge: Charge, taken: Sequence[DeviceShare]
) -> Reason | None:
    """The first reason, in HAMi's order, why the container may not join this GPU; `taken` count against the quota."""
    device, wanted = gpu.device, rules.filter
    memory_mib = need.reserved_mib(device.memory_mib)
    if (wanted.uuids is not None and device.uuid not in wanted.uuids) or device.uuid in wanted.refused_uuids:
        return Reason.UUID
    if gpu.slots >= device.slots:
        return Reason.SLOTS
    if rules.policy.idle_only and gpu.slots:
        return Reason.EXCLUSIVE
    if rules.quota is not None and not _within_quota((*taken, _share(gpu, need)), rules, charge):
        return Reason.QUOTA
    if device.memory_mib - gpu.memory_mib < memory_mib:
        return Reason.MEMORY
    return _refused_for_cores(gpu, need)


def _refused_for_cores(gpu: GpuUsage, need: ContainerNeed) -> Reason | None:
    device = gpu.device
    if device.cores - gpu.cores < need.reserved_cores:
        return Reason.CORES
    if device.cores == 100 and need.reserved_cores == 100 and gpu.slots:
        return Reason.EXCLUSIVE
    if device.cores and gpu.cores >= device.cores and need.reserved_cores == 0:
        return Reason.CORES_EXHAUSTED
    # A share of a GPU in MIG mode needs a placement, and none is handed out by this extender.
    return Reason.MIG if device.mode == _MIG else None


def _may_use_mig(cards: Sequence[GpuUsage], wanted: DeviceFilter) -> bool:
    """One GPU in MIG mode may serve a container several times."""
    return (wanted.modes is None or _MIG in wanted.modes) and any(gpu.device.mode == _MIG for gpu in cards)


def _share(gpu: GpuUsage, need: ContainerNeed) -> DeviceShare:
    return DeviceShare(
        uuid=gpu.device.uuid, memory_mib=need.reserved_mib(gpu.device.memory_mib), cores=need.reserved_cores
    )


def _misfit(reasons: Counter[Reason], cards: int) -> Misfit:
    return Misfit(", ".join(sorted(f"{count}/{cards} {reason}" for reason, count in reasons.items() if count)))
