"""Finds the jobs for which nodes may be set aside, and what has become of the nodes that are.

All that lasts is on the pods. What is remembered here beside it ends with the process: which pods `/filter` has
refused, since when a job fits on its node, and when the pods on a node end.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from math import inf
from sys import intern

from proto.annotations.keys import SET_ASIDE
from proto.annotations.set_aside import SetAside
from proto.kubernetes.objects import Pod
from proto.kubernetes.requests import host_requested
from scheduler_ext.cluster.closed_nodes import SetAsideFor, last_set_aside
from scheduler_ext.cluster.gangs import Gang
from scheduler_ext.cluster.pod_index import seconds_of
from scheduler_ext.cluster.snapshot import quota_for
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.decide.effort import SteppedSearch
from scheduler_ext.decide.misfit import Misfit
from scheduler_ext.decide.place import place
from scheduler_ext.decide.score import gpus_of
from scheduler_ext.decide.setting_aside import (
    UNFIT,
    NewlySetAside,
    NodeAhead,
    WaitingJob,
    most_set_aside,
    why_over,
)
from scheduler_ext.membership import group_of
from scheduler_ext.requests import GpuRequest, pod_key, readable_request

MOST_MEMBERS = 64
"""No nodes are set aside for a group of more missing members."""
MOST_NAMES = 500_000
"""Names of nodes that are remembered, of all pods with wishes together: 25 MiB at 5 000 nodes."""
MOST_DUE = 20
"""Jobs whose members are read in one turn."""
SECONDS_A_JOB = 0.5
"""The time between two turns, for each of the jobs that are read in one."""
BLOCKED_SECONDS = 15.0
"""The time until the next search while a job waits for the GPUs that are set aside for others."""
PODS_A_STEP = 1_000
"""Refused pods that are looked through before other requests get their turn."""
PAUSE_SECONDS = 60.0
"""The time after which a job for which no node was found has its next turn."""
NODES_A_STEP = 20
"""Nodes that are read before other requests get their turn: about one millisecond."""


class WaitingJobs:
    """The jobs of one cluster. `after` is the time of waiting; 0 if no nodes are set aside. `now` is always in seconds
    since 1970, but for `monotonic`.
    """

    def __init__(self, cluster: Cluster, after: float) -> None:
        self._cluster = cluster
        self._after = after
        self._refused: dict[str, Collection[str] | None] = {}
        """The nodes where kube-scheduler lets the pod, by UID; None for a pod without wishes for nodes."""
        self._next_search = 0.0
        self._names = 0
        """The number of names of nodes in it."""
        self._not_before: dict[str, float] = {}
        """The time of a job's next turn, by the name of the job."""
        self._ungated: dict[str, float] = {}
        """The last time at which a pod had scheduling gates, by UID: its wait begins then."""
        self._written: dict[str, float] = {}
        """The nodes that were set aside a moment ago, with the time: the watch may show it later."""
        self._free_since: dict[str, float] = {}
        self._ends: dict[str, float] = {}
        """The time at which a node that is set aside is free. Pods that fill it start late, and must not delay that."""

    def refused(self, pod: Pod, request: GpuRequest, nodes: Iterable[str]) -> None:
        """Records that the pod fits nowhere; `nodes` are those where it may once others have ended."""
        if gpus_of(request) < 2 and not group_of(pod):
            return
        wished = frozenset(map(intern, nodes)) if _has_wishes(pod) else None
        self._forget(request.uid)
        self._refused[request.uid] = wished
        self._names += len(wished or ())
        for uid in [uid for uid, each in self._refused.items() if each] if self._names > MOST_NAMES else ():
            self._forget(uid)
            if self._names <= MOST_NAMES:
                break

    def _forget(self, uid: str) -> None:
        self._names -= len(self._refused.pop(uid, None) or ())

    def due(self, now: float) -> SteppedSearch[list[WaitingJob]]:
        """Returns the first jobs that have waited long enough; none while no further GPUs may be set aside."""
        pending = self._cluster.pods.pending()
        for uid in self._refused.keys() - pending.keys():
            self._forget(uid)
        self._not_before = {name: at for name, at in self._not_before.items() if at > now}
        gated = {uid: now for uid, pod in pending.items() if pod.spec.scheduling_gates}
        self._ungated = {uid: at for uid, at in self._ungated.items() if uid in pending} | gated
        if not self._after or now < self._next_search or not self._may_set_aside(now):
            return []
        first: dict[str, tuple[int, bool, float, str]] = {}
        for number, uid in enumerate(tuple(self._refused)):
            pod = pending.get(uid)
            if (
                pod is not None
                and now >= self._since(pod) + self._after
                and (name := job_name(pod)) not in self._not_before
            ):
                key = -(pod.spec.priority or 0), SET_ASIDE in pod.metadata.annotations, self._since(pod), uid
                first[name] = min(key, first.get(name, key))
            if number % PODS_A_STEP == 0:
                yield
        found: list[WaitingJob] = []
        for *_, uid in nsmallest(MOST_DUE, first.values()):
            pod = pending.get(uid)
            if pod is not None:
                found += self._read(pod, now)
                yield
        return found

    def _read(self, pod: Pod, now: float) -> Sequence[WaitingJob]:
        """Returns the job of the pod if it is due. The others have their next turn when they may be."""
        job = self._job(pod, self._refused.get(pod_key(pod)))
        if job is not None and job.due_at(self._after) <= now:
            return (job,)
        self._not_before[job_name(pod)] = now + self._pause if job is None else job.due_at(self._after)
        return ()

    @property
    def _pause(self) -> float:
        """The time until a job's next turn is so long that all other jobs have theirs meanwhile."""
        return max(PAUSE_SECONDS, len(self._refused) * SECONDS_A_JOB)

    def searched(self, due: Sequence[WaitingJob], search: NewlySetAside, now: float) -> None:
        """Records which of the jobs have had their turn. Those that wait for earlier ones are not passed over."""
        self._not_before |= dict.fromkeys(search.tried, now + self._pause)
        if len(search.tried) < len(due) and not search.asides:
            self._next_search = now + BLOCKED_SECONDS

    def _may_set_aside(self, now: float) -> bool:
        sizes = {name: len(usage.gpus) for name, usage in self._cluster.ledger.nodes.usages().items()}
        return sum(sizes.get(name, 0) for name in self.taken(now)) < most_set_aside(sizes.values())

    def _since(self, pod: Pod) -> float:
        return max(seconds_of(pod.metadata.creation_timestamp), self._ungated.get(pod_key(pod), 0.0))

    def written(self, node: str, now: float) -> None:
        """Records that the node is set aside from now on."""
        self._written[node] = now

    def taken(self, now: float) -> frozenset[str]:
        """Returns the nodes that are set aside, or were a moment ago."""
        self._written = {node: at for node, at in self._written.items() if now < at + PAUSE_SECONDS}
        return frozenset((*self._cluster.ledger.set_asides.nodes(), *self._written))

    def _job(self, pod: Pod, nodes: Collection[str] | None) -> WaitingJob | None:
        gang = self._cluster.gang_of(pod)
        if (gang is None and group_of(pod)) or (gang is not None and gang.needed > MOST_MEMBERS):
            return None
        pods = [pod] if gang is None or gang.needed < 2 else _missing(gang)
        requests = [self._request(each) for each in pods]
        if not pods or not all(requests):
            return None
        request = self._request(pod)
        if request is None:
            return None
        earlier = [aside for each in pods if (aside := last_set_aside(each)) is not None]
        quotas, wish = self._cluster.ledger.quotas.of(request.namespace), request.wish
        return WaitingJob(
            name=job_name(pod),
            members=tuple(each for each in requests if each is not None),
            since=max(map(self._since, pods)),
            priority=pod.spec.priority or 0,
            had=max(earlier, key=lambda aside: aside.until, default=None),
            nodes=self._able(pods, nodes),
            level=wish.level if wish is not None and wish.required else "",
            quota=quota_for(request.quota_class, quotas),
        )

    def _request(self, pod: Pod) -> GpuRequest | None:
        """Returns the request of a pod that waits for GPUs alone; None if it has them, has a node set aside, or evicts
        others.
        """
        uid, records = pod_key(pod), self._cluster.ledger.records
        has_room = records.reserved(uid) is not None or records.kept(uid) is not None
        if has_room or uid in self._cluster.ledger.set_asides.every() or not _waits(pod):
            return None
        return readable_request(pod, self._cluster.requests)

    def _able(self, pods: Iterable[Pod], nodes: Collection[str] | None) -> Collection[str] | None:
        """Returns the nodes without those that keep the pods away, and those too small for one of them by CPU or memory
        even when empty; None for all.
        """
        known, hosts = self._cluster.ledger.nodes, self._cluster.ledger.hosts
        offered, unable = known.usages() if nodes is None else nodes, set[str]()
        waiting = [*pods]
        for tolerations in {pod.spec.tolerations: None for pod in waiting}:
            unable.update(known.repelling(tolerations))
        for amount in set(map(host_requested, waiting)):
            unable.update(name for name in offered if hosts.is_too_small(name, amount))
        return frozenset(offered) - unable if unable else nodes

    def nodes(self, now: float) -> SteppedSearch[Mapping[str, NodeAhead]]:
        """Returns all registered nodes, each as it is at its own moment."""
        found: dict[str, NodeAhead] = {}
        for number, name in enumerate(tuple(self._cluster.ledger.nodes.usages())):
            node = self._ahead(name, now)
            if node is not None:
                found[name] = node
            if number % NODES_A_STEP == 0:
                yield
        return found

    def _ahead(self, name: str, now: float) -> NodeAhead | None:
        usage, alone = self._cluster.ledger.nodes.usages().get(name), self._cluster.ledger.alone(name)
        if usage is None or alone is None:
            return None
        pods = self._cluster.pods
        running = {entry.uid: entry for entry in pods.running(name).values()}
        ends = {gpu.device.uuid: 0.0 for gpu in usage.gpus if gpu.replicas}
        for uid, record in alone.held.items():
            entry, waits = running.get(uid), pods.pending().get(uid)
            if entry is not None:
                end = (entry.started or now) + entry.lasts
            else:
                end = inf if waits is None else now + waits.spec.lasts
            for uuid in record.on(name).footprints:
                ends[uuid] = max(ends.get(uuid, 0.0), end)
        known = {uuid: at or inf for uuid, at in ends.items()}
        return NodeAhead(usage=usage, empty=alone.usage(alone.held.keys()), ends=known)

    def over(self, now: float) -> Mapping[str, str]:
        """Returns why nodes are no longer set aside, by the UID of their pods. A group keeps all its nodes, or none."""
        asides = self._cluster.ledger.set_asides.every()
        self._free_since = {uid: at for uid, at in self._free_since.items() if uid in asides}
        found = {uid: why for uid, each in asides.items() if (why := self._why_over(each, now))}
        whole = dict(self._groups_in_part(now))
        groups = {asides[uid].group: why for uid, why in found.items()} | whole
        of_groups = {uid: groups[each.group] for uid, each in asides.items() if each.group and each.group in groups}
        return {**of_groups, **found}

    def _why_over(self, each: SetAsideFor, now: float) -> str:
        pod, name = self._cluster.pods.pending().get(each.uid), each.aside.node
        if not self._after:
            return "nodes are no longer set aside"
        request = readable_request(pod, self._cluster.requests) if pod is not None and _waits(pod) else None
        node = self._ahead(name, now)
        if pod is not None and node is not None and node.usage.node.repels(pod.spec.tolerations):
            node = None
        fits = request is not None and node is not None and not isinstance(place(request, node.usage, None), Misfit)
        if fits or self._cluster.ledger.records.reserved(each.uid) is not None:
            self._free_since.setdefault(each.uid, now)
        else:
            self._free_since.pop(each.uid, None)
        return why_over(each.aside, request, node, now=now, free_since=self._free_since.get(each.uid, inf))

    def _groups_in_part(self, now: float) -> Iterator[tuple[str, str]]:
        """Yields the groups that need other members than those that have nodes, after a time for the writes."""
        asides, pending = self._cluster.ledger.set_asides.every(), self._cluster.pods.pending()
        of_groups: dict[str, list[SetAsideFor]] = {}
        for each in asides.values():
            if each.group:
                of_groups.setdefault(each.group, []).append(each)
        for members in of_groups.values():
            each = members[0]
            pod = pending.get(each.uid)
            gang = None if pod is None else self._cluster.gang_of(pod)
            if gang is None or now < each.aside.since + PAUSE_SECONDS:
                continue
            if set(map(pod_key, _missing(gang))) != {member.uid for member in members}:
                yield each.group, "the pods of its group that are needed are others than those with a node set aside"

    def backfill_until(self, now: float, monotonic: float) -> Mapping[str, float]:
        """Returns by node that is set aside the time, in monotonic seconds, by which a pod has to end that fills it:
        when the others there end. Where one has no deadline, it may take as long as a job waits before it gets a node.
        """
        nodes = self._cluster.ledger.set_asides.nodes()
        self._ends = {name: at for name, at in self._ends.items() if name in nodes}
        found: dict[str, float] = {}
        for name in nodes:
            node = self._ahead(name, now)
            if node is None:
                continue
            if node.free_at < inf:
                self._ends[name] = min(self._ends.get(name, inf), node.free_at)
            found[name] = monotonic + (self._ends[name] - now if name in self._ends else self._after)
        return found


def _missing(gang: Gang) -> list[Pod]:
    """Returns the members that are needed; none if some of them do not exist yet."""
    pods = [pod for _, pod in gang.queue()[: gang.needed]]
    return pods if len(pods) == gang.needed else []


def job_name(pod: Pod) -> str:
    """Returns the name of the pod's group, or its own, with the namespace."""
    return group_of(pod) or f"{pod.metadata.namespace}/{pod.metadata.name}"


def _waits(pod: Pod) -> bool:
    return not pod.spec.scheduling_gates and pod.metadata.deletion_timestamp is None


def _has_wishes(pod: Pod) -> bool:
    spec = pod.spec
    return bool(spec.node_selector or spec.affinity is not None or spec.topology_spread_constraints)


def ended(aside: SetAside, now: float, why: str) -> SetAside:
    """Returns what the annotation has once it is over. A job that lost its node does not rest for as long."""
    until = max(int(now), aside.since)
    return SetAside(node="", since=until if why == UNFIT else aside.since, until=until)
