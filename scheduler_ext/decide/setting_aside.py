"""Decides for which waiting jobs nodes are set aside, which nodes, and when that ends.

Without it a pod of eight whole GPUs waits as long as smaller pods take each GPU that becomes free. A job is a pod, or a
group of pods that start together: it gets all the nodes that it lacks, or none. Times are in seconds since 1970.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from proto.annotations.set_aside import SetAside
from proto.devices import DeviceUUID
from scheduler_ext.cluster.snapshot import NodeUsage, Quota
from scheduler_ext.decide.misfit import Misfit
from scheduler_ext.decide.place import place, with_pod
from scheduler_ext.decide.score import gpus_of
from scheduler_ext.requests import GpuRequest

LONGEST_SECONDS = 24 * 3600
"""The longest time for which a node is set aside. Then the job waits at least as long again before its next one."""
GPUS_FOR_ONE = 10
"""Of so many GPUs one may be on a node that is set aside, and one node in a smaller cluster."""
UNTAKEN_SECONDS = 600.0
"""The time that a job may take to go to its free node. kube-scheduler tries a pod at least every five minutes."""
LATE_SECONDS = 300.0
"""The time by which the clock of the replica that has set a node aside may be ahead of this one's."""
UNFIT = "the pod no longer fits there"
"""The reason for a node that is gone, closed or ill."""
MOST_TRIED = 200
"""Nodes that are tried for one pod, the best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingJob:
    """A pod, or the missing members of a group, that fits nowhere now. `since` is when the last of them was created."""

    name: str
    members: tuple[GpuRequest, ...]
    since: float
    priority: int = 0
    had: SetAside | None = None
    """The last node set aside for it that is over."""
    nodes: Collection[str] | None = None
    """The nodes where kube-scheduler lets it; None if it has no wishes for nodes."""
    level: str = ""
    """The level of domains of which one has to hold it; empty if its nodes may be anywhere."""
    quota: Quota | None = None

    @property
    def gpus(self) -> int:
        return sum(map(gpus_of, self.members))

    def due_at(self, after: float) -> float:
        """Returns when it has waited for `after`, since the end of its last node too, and as long as it had that."""
        rest = 0.0 if self.had is None else self.had.until + max(after, self.had.until - self.had.since)
        return max(self.since + after, rest)


@dataclass(frozen=True, slots=True)
class NewlySetAside:
    asides: Mapping[str, SetAside]
    """Nodes by UID of the pods for which they are set aside from now on."""
    tried: Collection[str]
    """The names of the jobs that got nodes, or cannot get any. The other jobs wait for earlier ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAhead:
    """A node now, and `empty` as if no pod ran there. `ends` is by GPU in use when it becomes free, as far as its pods
    have deadlines: it is infinite without.
    """

    usage: NodeUsage
    empty: NodeUsage
    ends: Mapping[DeviceUUID, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.usage.node.name

    @property
    def free_at(self) -> float:
        """Returns when all its GPUs are free; infinite if a pod without deadline runs there."""
        return max(self.ends.values(), default=0.0)

    def cost(self, gpus: int) -> tuple[int, float, int, str]:
        """Returns a key for sorting: the node where fewest of so many GPUs are in use by pods without a deadline comes
        first, then that where the others end first, then the emptiest.
        """
        soonest = sorted(self.ends.get(gpu.device.uuid, 0.0) for gpu in self.usage.gpus)[:gpus]
        known = [each for each in soonest if each < inf]
        return len(soonest) - len(known), max(known, default=0.0), sum(1 for each in soonest if each), self.name


def is_large(gpus: int, of_node: int) -> bool:
    """Returns whether so many GPUs are at least two, and half of a node: smaller jobs find room as others end."""
    return gpus >= 2 and 2 * gpus >= of_node


def most_set_aside(gpus_of_nodes: Iterable[int]) -> int:
    """Returns how many GPUs may be on set-aside nodes at a time, by the number of GPUs of each node: at least one node
    may be set aside.
    """
    every = tuple(gpus_of_nodes)
    return max(sum(every) // GPUS_FOR_ONE, max(every, default=0))


def newly_set_aside(
    jobs: Iterable[WaitingJob], nodes: Mapping[str, NodeAhead], taken: Collection[str], *, now: float, after: float
) -> NewlySetAside:
    """Sets nodes aside. `taken` are set aside already. Jobs of a higher priority come first, then those that never had
    one, then those that have waited longest. None comes before a job that needs more nodes than may be set aside now:
    it would wait for ever.
    """
    sizes = {name: len(node.usage.gpus) for name, node in nodes.items()}
    most = most_set_aside(sizes.values())
    left = most - sum(sizes.get(name, 0) for name in taken)
    free = nodes.keys() - taken
    found, tried = dict[str, SetAside](), set[str]()
    best: dict[int, Sequence[NodeAhead]] = {}
    for job in sorted(jobs, key=lambda job: (-job.priority, job.had is not None, job.since, job.name)):
        if left < 1:
            break
        if now < job.due_at(after):
            continue
        if job.gpus not in best:
            best[job.gpus] = sorted(nodes.values(), key=lambda node: node.cost(job.gpus))
        chosen = nodes_for(job, [node for node in best[job.gpus] if node.name in free], most)
        names = set(chosen.values())
        left -= sum(sizes[name] for name in names)
        if left < 0:
            break
        tried.add(job.name)
        until = int(now) + LONGEST_SECONDS
        found |= {uid: SetAside(node=node, since=int(now), until=until) for uid, node in chosen.items()}
        free -= names
    return NewlySetAside(found, tried)


def nodes_for(job: WaitingJob, nodes: Sequence[NodeAhead], most: int) -> Mapping[str, str]:
    """Returns the node of each member: the first of `nodes`, of at most `most` GPUs. Empty if the job needs more,
    fits nowhere, or does not have to wait for GPUs.
    """
    domains = _domains([node for node in nodes if job.nodes is None or node.name in job.nodes], job.level)
    if any(_packed(job, [node.usage for node in each]) for each in domains):
        return {}
    best: tuple[tuple[int, int], Mapping[str, str]] = (0, 0), {}
    for each in domains:
        large = [node for node in each if is_large(job.gpus, len(node.usage.gpus))]
        chosen = _packed(job, [node.empty for node in large], most)
        taken = set(chosen.values())
        cost = sum(node.cost(job.gpus)[0] for node in large if node.name in taken), len(taken)
        if chosen and (not best[1] or cost < best[0]):
            best = cost, chosen
    return best[1]


def _domains(nodes: Sequence[NodeAhead], level: str) -> Sequence[Sequence[NodeAhead]]:
    if not level:
        return [nodes]
    found: dict[str, list[NodeAhead]] = {}
    for node in nodes:
        if domain := node.usage.node.domains.get(level):
            found.setdefault(domain, []).append(node)
    return [found[name] for name in sorted(found)]


def _packed(job: WaitingJob, usages: Sequence[NodeUsage], most: float = inf) -> Mapping[str, str]:
    """Returns the node of each member if all of them fit on these nodes, the first ones first; else nothing. The nodes
    taken have at most `most` GPUs together.
    """
    found: dict[str, str] = {}
    begun: dict[str, NodeUsage] = {}
    for member in sorted(job.members, key=lambda member: (-gpus_of(member), member.uid)):
        left = most - sum(len(usage.gpus) for usage in begun.values())
        others = (usage for usage in usages[:MOST_TRIED] if usage.node.name not in begun and len(usage.gpus) <= left)
        for usage in (*begun.values(), *others):
            shares = place(member, usage, job.quota)
            if not isinstance(shares, Misfit):
                found[member.uid] = usage.node.name
                begun[usage.node.name] = with_pod(usage, member, shares)
                break
        else:
            return {}
    return found


def why_over(
    aside: SetAside, request: GpuRequest | None, node: NodeAhead | None, *, now: float, free_since: float
) -> str:
    """Returns why the node is no longer set aside, in a sentence; empty if it still is. The `request` is None if the
    pod no longer waits for GPUs, the `node` if the pod may not go there. `free_since` is when the pod began to fit
    there; infinite before.
    """
    if not aside.since <= now + LATE_SECONDS or now >= min(aside.until, aside.since + LONGEST_SECONDS):
        return f"its time of {LONGEST_SECONDS // 3600} h is over"
    if request is None:
        return "the pod waits for something else than GPUs"
    if node is None or isinstance(place(request, node.empty, None), Misfit):
        return UNFIT
    if now >= free_since + UNTAKEN_SECONDS:
        return f"its GPUs have been free for {UNTAKEN_SECONDS / 60:.0f} min, and the pod was not placed there"
    return ""
