"""Finds out how many pods of a group fit at once, for the sentences that people read about the group. No IO."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from program.words import counted
from proto.devices import ContainerShares
from scheduler_ext.cluster.gangs import Gang
from scheduler_ext.cluster.snapshot import NodeUsage, Quota, Snapshot, quota_for
from scheduler_ext.decide.misfit import Misfit
from scheduler_ext.decide.place import place
from scheduler_ext.domains.levels import word
from scheduler_ext.requests import GpuRequest


@dataclass(frozen=True, slots=True)
class GroupRoom:
    """The number of members that fit of those that a group needs, in one domain if it has to be one. `sentence` follows
    `waits: `.
    """

    fit: int
    needed: int
    sentence: str

    @property
    def is_enough(self) -> bool:
        return self.fit >= self.needed


def room_of(gang: Gang, request: GpuRequest, snapshot: Snapshot) -> GroupRoom:
    """Returns the room for pods like this one. The largest domain counts if the group has to be in one."""
    level = level_of(gang, request)
    domains: dict[str, list[NodeUsage]] = {}
    for usage in snapshot.nodes.values():
        name = usage.node.domains.get(level, "") if level else ""
        if name or not level:
            domains.setdefault(name, []).append(usage)
    quota = quota_for(request.quota_class, snapshot.quotas.get(request.namespace, ()))
    rooms = {name: _fitting(request, usages, quota, gang.needed) for name, usages in domains.items()}
    best = max(sorted(rooms), key=rooms.__getitem__, default="")
    where = f" in {word(level)} {best}" if best else ""
    fit = rooms.get(best, 0)
    return GroupRoom(fit, gang.needed, shortage(gang, request, fit) + where)


def level_of(gang: Gang, request: GpuRequest) -> str:
    """Returns the label whose value all pods of the group need to share on their nodes; empty if they need none."""
    if request.wish is not None and request.wish.required:
        return request.wish.level
    constraints = gang.object.spec.scheduling_constraints if gang.object is not None else None
    return constraints.topology[0].key if constraints is not None and constraints.topology else ""


def shortage(gang: Gang, request: GpuRequest, fit: int) -> str:
    """Returns `group default/g needs 4 pods of 8 GPUs; 3 fit`."""
    gpus = sum(need.count for need in request.needs if need is not None)
    return f"group {gang.group} needs {gang.needed} pods of {counted(gpus, 'GPU')}; {fit} fit"


def _fitting(request: GpuRequest, usages: Iterable[NodeUsage], quota: Quota | None, most: int) -> int:
    number = 0
    for usage in usages:
        while number < most:
            shares = place(request, usage, quota)
            if isinstance(shares, Misfit):
                break
            number += 1
            usage = _taken(usage, shares)  # noqa: PLW2901 - the same node with one more pod
            for each in shares:
                quota = None if quota is None else quota.charged(each)
    return number


def _taken(usage: NodeUsage, shares: Sequence[ContainerShares]) -> NodeUsage:
    taken = [share for container in shares for share in container]
    gpus = list(usage.gpus)
    for number, gpu in enumerate(gpus):
        for share in taken:
            gpus[number] = gpus[number].plus(share) if share.uuid == gpu.device.uuid else gpus[number]
    return replace(usage, gpus=tuple(gpus))
