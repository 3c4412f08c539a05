"""Finds out what a group lacks, for the sentences that people read about it: those of `/filter`. No IO."""

from collections.abc import Iterable

from program.words import counted
from scheduler_ext.cluster.gangs import Gang
from scheduler_ext.cluster.snapshot import NodeUsage, Quota, Snapshot, quota_for
from scheduler_ext.decide.effort import Effort
from scheduler_ext.decide.misfit import Misfit
from scheduler_ext.decide.place import place, pods_on, with_pod
from scheduler_ext.domains.levels import word
from scheduler_ext.domains.plan import Room, no_domain
from scheduler_ext.domains.wish import DomainWish
from scheduler_ext.requests import GpuRequest


def lack_of(gang: Gang, request: GpuRequest, snapshot: Snapshot, *, alone_fits: bool) -> str:
    """Returns what the group lacks if its missing pods are like this one, to follow `waits: `; empty if all of them
    fit, or if not even one does alone and the group needs no domain. The largest domain counts where they have to be
    in one.
    """
    wish = request.wish
    if wish is not None and wish.required and (lack := _domain_lacking(gang, request, wish, snapshot)):
        return lack
    if gang.needed < 2 or not alone_fits:
        return ""
    level = constraint_of(gang)
    domains: dict[str, list[NodeUsage]] = {}
    for usage in snapshot.nodes.values():
        name = usage.node.domains.get(level, "") if level else ""
        if name or not level:
            domains.setdefault(name, []).append(usage)
    quota = quota_for(request.quota_class, snapshot.quotas.get(request.namespace, ()))
    rooms = {name: _fitting(request, usages, quota, gang.needed) for name, usages in domains.items()}
    best = max(sorted(rooms), key=rooms.__getitem__, default="")
    fit = rooms.get(best, 0)
    return "" if fit >= gang.needed else shortage(gang, request, fit, level, best)


def _domain_lacking(gang: Gang, request: GpuRequest, wish: DomainWish, snapshot: Snapshot) -> str:
    rooms = [
        Room(name, pods_on(usage, request, Effort()), usage.node.domains) for name, usage in snapshot.nodes.items()
    ]
    known = {**snapshot.closed, **snapshot.nodes}
    beside = [known[name].node.domains if name in known else {} for name in gang.nodes]
    refusal = no_domain(rooms, gang.needed, wish, beside)
    return f"group {gang.group} {refusal}" if refusal.largest < gang.needed else ""


def constraint_of(gang: Gang) -> str:
    """Returns the label whose value kube-scheduler wants all nodes of the group to share; empty if none."""
    constraints = gang.object.spec.scheduling_constraints if gang.object is not None else None
    return constraints.topology[0].key if constraints is not None and constraints.topology else ""


def shortage(gang: Gang, request: GpuRequest, fit: int, level: str = "", domain: str = "") -> str:
    """Returns `group default/g needs 4 pods of 8 GPUs; 3 fit`, and ` in clique a` with a domain."""
    gpus = sum(need.count for need in request.needs if need is not None)
    where = f" in {word(level)} {domain}" if domain else ""
    return f"group {gang.group} needs {gang.needed} pods of {counted(gpus, 'GPU')}; {fit} fit{where}"


def _fitting(request: GpuRequest, usages: Iterable[NodeUsage], quota: Quota | None, most: int) -> int:
    number = 0
    for usage in usages:
        while number < most:
            shares = place(request, usage, quota)
            if isinstance(shares, Misfit):
                break
            number += 1
            usage = with_pod(usage, request, shares)  # noqa: PLW2901 - the same node with one more pod
            for each in shares:
                quota = None if quota is None else quota.charged(each)
    return number
