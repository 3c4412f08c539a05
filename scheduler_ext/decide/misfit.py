"""Explains why a pod does not fit on a node: one reason for every GPU, with its figures.

Text and figures are made only on request, so a decision over thousands of nodes costs one pair of GPU and reason each.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from program.words import ranges
from proto.annotations.node_limits import Backend, NodeLimits
from proto.devices import MIG_MODE, DeviceUUID
from scheduler_ext.cluster.snapshot import GpuUsage, Quota
from scheduler_ext.decide.reasons import (
    LIFTED,
    NO_CORES,
    NO_GPU_SO_LARGE,
    NO_HOOK,
    SEVERAL,
    TOO_FEW_SO_LARGE,
    UNHELD,
    Reason,
    by_importance,
    joined,
    words_of,
)
from scheduler_ext.requests import ContainerNeed


class Unit(StrEnum):
    MIB = "MiB"
    PERCENT = "%"
    REPLICAS = "replicas"
    GPUS = "GPUs"


Verdict = tuple[GpuUsage, Reason]


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """The amounts that were needed, in use and there in total: of the GPU, or of the namespace's quota."""

    needed: int
    used: int
    total: int
    unit: Unit

    @property
    def free(self) -> int:
        """Returns what is free; 0 where pods hold more than the total, which got smaller while they run."""
        return max(self.total - self.used, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRefusal:
    """A refusal of one GPU for a container. `amounts` are the figures behind the reason, if it has any."""

    uuid: DeviceUUID
    index: int
    type: str
    mode: str
    reason: Reason
    amounts: Amounts | None = None
    unheld: str = ""
    """The cause for which nothing holds the container, as `REMEDIES` names it; empty for another reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """The first container of a pod that does not fit on a node.

    `verdicts` are in the order in which the GPUs were tried; empty if the node has fewer GPUs than needed. `quota` is
    what was left for the container. `limits` are those of the node.
    """

    need: ContainerNeed
    cards: int
    verdicts: Sequence[Verdict] = ()
    quota: Quota | None = None
    limits: NodeLimits = NodeLimits.NONE

    @property
    def reason(self) -> str:
        """Returns how many of the node's GPUs fail for which reason: `2/4 CardInsufficientMemory, …`."""
        if not self.verdicts:
            return Reason.NODE_INSUFFICIENT_DEVICE
        return _counted(tuple(reason for _, reason in self.verdicts), self.cards, self.unheld)

    @property
    def brief(self) -> str:
        """Returns `CardInsufficientMemory`, or `CardInsufficientMemory 6/8 + CardInsufficientCore 2/8` where GPUs
        differ.

        It stands between the commas of kube-scheduler's events, so it has none.
        """
        if not self.verdicts:
            return Reason.NODE_INSUFFICIENT_DEVICE
        return _brief(tuple(reason for _, reason in self.verdicts), self.cards, self.unheld)

    def words(self, *, named: bool = False) -> tuple[str, ...]:
        """Returns the reasons for people, the most important first. `named` adds which GPUs are out of service."""
        if not self.verdicts:
            return (Reason.NODE_INSUFFICIENT_DEVICE.words,)
        small = sum(self.need.reserved_mib(gpu.device.memory_mib) > gpu.device.memory_mib for gpu, _ in self.verdicts)
        if small == len(self.verdicts):
            return (NO_GPU_SO_LARGE,)
        # A GPU in MIG mode has a verdict for each of its instances.
        if len(self.verdicts) == self.cards and small > self.cards - self.need.count:
            return (TOO_FEW_SO_LARGE,)
        found = []
        for reason in by_importance(reason for _, reason in self.verdicts):
            gpus = sorted({gpu.device.index for gpu, each in self.verdicts if each is reason})
            is_named = named and reason in (Reason.NOT_HEALTHY, Reason.CORDONED)
            found.append(
                f"GPU {ranges(gpus)} {'is' if len(gpus) == 1 else 'are'} {reason.words}" if is_named else reason.words
            )
        return tuple(found)

    @property
    def unheld(self) -> str:
        """Returns what keeps the container from being held to parts of GPUs, as `REMEDIES` names it."""
        if self.need.lifted_by:
            return self.need.lifted_by
        if self.limits.backends == (Backend.DRIVER,):
            return NO_CORES
        return SEVERAL if self.need.count > 1 else NO_HOOK

    @property
    def refusals(self) -> tuple[GpuRefusal, ...]:
        return tuple(
            GpuRefusal(
                uuid=gpu.device.uuid,
                index=gpu.device.index,
                type=gpu.device.type,
                mode=gpu.device.mode,
                reason=reason,
                amounts=_amounts(reason, gpu, self.need, self.quota),
                unheld=self.unheld if reason is Reason.LIMITS else "",
            )
            for gpu, reason in self.verdicts
        )


@dataclass(frozen=True, slots=True)
class NotOffered:
    """The node was not judged: it is unknown, or its GPUs are not registered."""

    reason: str

    @property
    def brief(self) -> str:
        return self.reason

    def words(self) -> tuple[str, ...]:
        return words_of(self.reason)


@lru_cache(maxsize=4096)
def _counted(reasons: tuple[Reason, ...], cards: int, cause: str) -> str:
    counted = sorted(f"{count}/{cards} {reason}" for reason, count in Counter(reasons).items())
    return ", ".join(counted) + (
        f" ({UNHELD.get(cause) or LIFTED.format(variable=cause)})" if Reason.LIMITS in reasons else ""
    )


@lru_cache(maxsize=4096)
def _brief(reasons: tuple[Reason, ...], cards: int, cause: str) -> str:
    named = {Reason.LIMITS: f"{Reason.LIMITS}({cause})"}
    counted = sorted(Counter(reasons).items(), key=lambda each: (-each[1], each[0]))
    if len(counted) == 1 and len(reasons) == cards:
        return named.get(reasons[0], reasons[0])
    return " + ".join(f"{named.get(reason, reason)} {count}/{cards}" for reason, count in counted)


def _amounts(reason: Reason, gpu: GpuUsage, need: ContainerNeed, quota: Quota | None) -> Amounts | None:
    device = gpu.device
    match reason:
        case Reason.MEMORY:
            needed = need.reserved_mib(device.memory_mib)
            return Amounts(needed=needed, used=gpu.memory_mib, total=device.memory_mib, unit=Unit.MIB)
        case Reason.CORES | Reason.CORES_EXHAUSTED:
            return Amounts(needed=need.reserved_cores, used=gpu.cores, total=device.cores, unit=Unit.PERCENT)
        case Reason.REPLICAS:
            return Amounts(needed=1, used=gpu.replicas, total=device.replicas, unit=Unit.REPLICAS)
        case Reason.EXCLUSIVE:
            return Amounts(needed=device.replicas, used=gpu.replicas, total=device.replicas, unit=Unit.REPLICAS)
        case Reason.QUOTA:
            return None if quota is None else _quota_amounts(gpu, need, quota)
    return None


def _quota_amounts(gpu: GpuUsage, need: ContainerNeed, quota: Quota) -> Amounts:
    """Returns what the container lacks for all its GPUs together: their number if that is too small, else memory, else
    cores.
    """
    if quota.gpus is not None and quota.used.replicas + need.count > quota.gpus:
        return Amounts(needed=need.count, used=quota.used.replicas, total=quota.gpus, unit=Unit.GPUS)
    needed = need.count * need.reserved_mib(gpu.device.memory_mib)
    if quota.memory_mib is not None and (quota.cores is None or quota.used.memory_mib + needed > quota.memory_mib):
        return Amounts(needed=needed, used=quota.used.memory_mib, total=quota.memory_mib, unit=Unit.MIB)
    limit = quota.cores or 0
    needed = need.count * need.reserved_cores
    return Amounts(needed=needed, used=quota.used.cores, total=limit, unit=Unit.PERCENT)


_LASTING = frozenset({Reason.NOT_HEALTHY, Reason.CORDONED, Reason.TYPE, Reason.UUID, Reason.LIMITS})


class NodeRefusal(NamedTuple):
    """A node's line in the answer of `/filter`. If it is `unresolvable`, evicting other pods does not help. `words` are
    the reasons for people.
    """

    reason: str
    unresolvable: bool
    words: str


def node_refusal_of(misfit: Misfit | NotOffered) -> NodeRefusal:
    return NodeRefusal(misfit.brief, is_unresolvable(misfit), joined(misfit.words()))


class NodeRefusals(NamedTuple):
    """Reasons by node: of the nodes on which eviction may help, and of the unresolvable ones."""

    failed: Mapping[str, str]
    unresolvable: Mapping[str, str]


def refusals_of(misfits: Mapping[str, Misfit | NotOffered]) -> NodeRefusals:
    failed, unresolvable = dict[str, str](), dict[str, str]()
    for name, misfit in misfits.items():
        (unresolvable if is_unresolvable(misfit) else failed)[name] = misfit.brief
    return NodeRefusals(failed, unresolvable)


def is_unresolvable(misfit: Misfit | NotOffered) -> bool:
    """Returns whether the node is unknown, has too few GPUs at all, or too few that could ever serve the container."""
    if isinstance(misfit, NotOffered) or not misfit.verdicts:
        return True
    # One GPU in MIG mode may serve every instance that the container requests.
    needed = 1 if any(gpu.device.mode == MIG_MODE for gpu, _ in misfit.verdicts) else misfit.need.count
    lost = sum(_is_lost(gpu, reason, misfit.need) for gpu, reason in misfit.verdicts)
    return misfit.cards - lost < needed


def _is_lost(gpu: GpuUsage, reason: Reason, need: ContainerNeed) -> bool:
    """Returns whether the GPU can never serve the container: for this reason, or because even the whole GPU is too
    small. The second may hide behind a reason that was found before it.
    """
    return need.is_beyond(gpu.device) or reason in _LASTING
