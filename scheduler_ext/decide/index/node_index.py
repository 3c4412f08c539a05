"""The decision for `/filter`: the same as `decide` finds, without judging every node for every pod."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, takewhile

from proto.devices import PodShares
from proto.kubernetes.requests import HostAmount
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.registered import RegisteredNode
from scheduler_ext.cluster.workload import NO_WORKLOAD
from scheduler_ext.decide.decision import NO_NODE_OFFERED, Decision, decide
from scheduler_ext.decide.fgd import NOTHING_LOST, Fragmentation, Site
from scheduler_ext.decide.index.node_states import Kind, Standing, Standings
from scheduler_ext.decide.index.order import Order
from scheduler_ext.decide.index.packing import Packing
from scheduler_ext.decide.index.ranking import Ranking, Shape, Sought
from scheduler_ext.decide.index.verdicts import Judge
from scheduler_ext.decide.misfit import Reason
from scheduler_ext.decide.preference import Preference, preference
from scheduler_ext.decide.priorities import preferences
from scheduler_ext.decide.unresolvable import told_apart
from scheduler_ext.policies import NodePolicy
from scheduler_ext.requests import ContainerNeed, GpuRequest

MOST_SHAPES = 32
"""Rankings kept. Each takes about 1 MB at 5 000 nodes, up to 3 MB for pods with several containers."""
BREATH = 500
"""Effort as `Judge` counts it: about one millisecond."""
MOST_EFFORT = 10
"""Effort for one answer, per node of the cluster: about 20 ms at 1 000 nodes. The next answer judges the rest."""
LEAST_MOST_EFFORT = 10_000
"""Smallest limit of effort, for a small cluster."""
TALLIED = 100
"""Effort spent on counting the nodes that fit."""
MOST_ROOMS = 10_000
"""Shapes for which it is remembered where a background search found room."""
NO_ORDER = Order()
MOST_NODES_NAMED = 20
"""If more nodes than this fit, only the score of the chosen one is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How many of the offered nodes fit, and their scores. If many fit: only the score of the chosen one."""

    fitting: int = 0
    unknown: int = 0
    """Number of nodes that were not judged. The chosen node is better in any case."""
    scores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A decision without the reasons why nodes failed when one fits: in a large cluster no reader needs them.

    `tally` counts when it is called, usually before the next choice: kube-scheduler does not wait for it.
    """

    node: str | None
    shares: PodShares = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    """When none fits: the reasons of the nodes where evicting other pods may help. `hopeless` has the other nodes."""
    hopeless: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    tally: Callable[[], Tally] = field(default=Tally, compare=False)


def choice_of(decision: Decision) -> Choice:
    if decision.node is None:
        failed, hopeless = told_apart(decision.misfits)
        return Choice(node=None, failed=failed, hopeless=hopeless, error=decision.error)
    scores = decision.scores
    named = scores if len(scores) <= MOST_NODES_NAMED else {decision.node: scores[decision.node]}
    tally = Tally(fitting=len(scores), scores=named)
    return Choice(node=decision.node, shares=decision.shares, tally=lambda: tally)


class Candidates:
    """The nodes of a ledger, ranked for the pod shapes asked about last.

    An answer costs only what changed since the last pod of the same shape: usually the node that pod went to. The
    ranking gives the best of the offered nodes. For the first pod of a shape, nodes are judged in the order of
    preference until one fits.
    """

    def __init__(
        self,
        ledger: Ledger,
        breath: int = BREATH,
        *,
        least_most_effort: int = LEAST_MOST_EFFORT,
        most_shapes: int | None = None,
    ) -> None:
        """`breath` is the effort after which other requests get their turn."""
        self._ledger = ledger
        self._least_most_effort = least_most_effort
        self._most_shapes = MOST_SHAPES if most_shapes is None else most_shapes
        self._breath = breath
        self._makes = Standings()
        self._kind_of: dict[str, tuple[RegisteredNode, Kind]] = {}
        self._standings: dict[str, Standing] = {}
        self._orders: dict[NodePolicy, Order] = {each: Order() for each in NodePolicy if each is not NodePolicy.FGD}
        """The order of all nodes, as if the pod fitted on all of them. With `fgd` each shape has its own."""
        self._changes: dict[str, int] = {}
        """The number of each node's last change, in ascending order."""
        self._rankings: dict[Shape, Ranking] = {}
        """The ranking used last comes last. An `OrderedDict` would compare shapes three times where this compares once.
        """
        self._fragmentation = Fragmentation(NO_WORKLOAD)
        self._sites: dict[str, Site] = {}
        """As far as they were read since their last change."""
        self._prepared: tuple[Ranking, Sequence[str], Sought] | None = None
        """What was found for the next answer. Valid until a node changes."""
        self._rooms: dict[Shape, str] = {}
        self._most = _Most()
        self.last_change = 0

    def choose(self, request: GpuRequest, node_names: Sequence[str], *, prepared: bool = False) -> Choice:
        """Choose as `decide` does among `node_names`. GPUs that the pod's own reservation holds count as taken.

        After `prepared` this takes at most about a millisecond, whatever has changed since.
        """
        if self._ledger.is_bound(request.uid):
            return choice_of(decide(request, self._ledger.snapshot(request.uid), node_names))
        shape = self.shape(request)
        ranking = self._ranking(shape)
        sought = self._sought(ranking, node_names) or ranking.seek(node_names, self._effort(prepared=prepared))
        if not sought.done:
            ranking.judge(filter(None, [self._rooms.pop(shape, None)]))
        # When there is no time to search for a better node, one that fits is enough.
        node = sought.node if sought.done else self._any(ranking, node_names)
        if node is None:
            return self._nowhere(ranking, node_names)
        shares = ranking.shares(self._standings[node].usage)
        return Choice(node=node, shares=shares, tally=lambda: self._tally(ranking, node, node_names))

    def _any(self, ranking: Ranking, node_names: Sequence[str]) -> str | None:
        """The best node that is known to fit. If none is, some are judged."""
        known = ranking.best_known(node_names)
        if known is None:
            ranking.judge(node_names, self._breath)
            known = ranking.best_known(node_names)
        return known

    def preparing(self, request: GpuRequest, node_names: Sequence[str], *, every: bool = False) -> Iterator[None]:
        """Find out what `choose`, or with `every` what `fitting`, needs; in steps of about a millisecond.

        The ledger may change between steps: changed nodes are judged again.
        """
        shape = self.shape(request)
        if self._ledger.is_bound(request.uid):
            return
        offered: Collection[str] = node_names
        for _ in range(max(self._most_effort() // self._breath, 1)):
            ranking = self._ranking(shape)
            if every:
                done = ranking.judge(node_names, self._breath)
            else:
                sought = ranking.seek(offered, self._breath)
                self._prepared, done = (ranking, node_names, sought), sought.done
            if done:
                return
            # One step is enough nearly always, and needs no set.
            offered = offered if every or isinstance(offered, set) else set(offered)
            yield

    def _sought(self, ranking: Ranking, node_names: Sequence[str]) -> Sought | None:
        """What was found while preparing, if it was for the same question."""
        prepared, self._prepared = self._prepared, None
        if prepared is None or prepared[0] is not ranking or prepared[1] is not node_names or not prepared[2].done:
            return None
        return prepared[2]

    def _tally(self, ranking: Ranking, node: str, node_names: Sequence[str]) -> Tally:
        offered, unknown = set(node_names), 0
        if not ranking.judge(node_names, TALLIED):
            unknown = len(offered.difference(ranking.fits, ranking.failed, ranking.hopeless))
        # Of all ways to count them this one copies least where most nodes fit.
        fitting = len(offered) - len(offered.difference(ranking.fits))
        named = offered & ranking.fits.keys() if fitting <= MOST_NODES_NAMED else (node,)
        scores = {name: self._standings[name].total for name in named if name in self._standings}
        return Tally(fitting=fitting, unknown=unknown, scores=scores)

    def look_ahead(self) -> None:
        """Do now what the next pod would have to wait for, if it has the shape asked about last."""
        self._catch_up()
        if self._rankings:
            next(reversed(self._rankings.values())).look_ahead()

    def fitting(
        self, request: GpuRequest, node_names: Sequence[str], *, prepared: bool = False
    ) -> Mapping[str, Preference]:
        """The offered nodes that fit, as `decide` finds them. Reservations count as in `choose`."""
        if self._ledger.is_bound(request.uid):
            return preferences(request.policies.node, decide(request, self._ledger.snapshot(request.uid), node_names))
        ranking = self._ranking(self.shape(request))
        ranking.judge(node_names, self._effort(prepared=prepared))
        return {name: ranking.fits[name] for name in node_names if name in ranking.fits}

    def others(self, request: GpuRequest, node_names: Sequence[str], best: str, most: int) -> Mapping[str, PodShares]:
        """What the pod would get on the next best nodes after `best`, at most `most` of them."""
        found: dict[str, PodShares] = {}
        if most < 1:
            return found
        ranking, left = self._ranking(self.shape(request)), set(node_names) - {best}
        while len(found) < most and (node := ranking.seek(left, self._breath).node) is not None:
            found[node] = ranking.shares(self._standings[node].usage)
            left.remove(node)
        return found

    def shape(self, request: GpuRequest) -> Shape:
        """What the pod asks of every node, as its quota is now."""
        self._catch_up()
        quota = self._ledger.quota(request.namespace, request.quota_class)
        covered = quota is None or quota.admits(*self._most.taken(request.needs))
        return Shape(request=request, quota=None if covered else quota)

    def without_gpus(self, host: HostAmount, node_names: Iterable[str]) -> Mapping[str, int]:
        """Levels for a pod that takes CPU and memory but no GPU. A node without GPUs has that of one that loses
        nothing.
        """
        self._catch_up()
        level, known = self._fragmentation.without_gpus, self._standings
        return {name: level(host, self._site(name)) if name in known else NOTHING_LOST for name in node_names}

    def fits_nowhere(self, request: GpuRequest, node_names: Sequence[str], *, prepared: bool = False) -> bool:
        """Whether the pod is known to fit on none of these nodes. False also if the effort for one answer does not show
        it.
        """
        if self._ledger.is_bound(request.uid):
            return False
        ranking = self._ranking(self.shape(request))
        return ranking.judge(node_names, self._effort(prepared=prepared)) and ranking.best_known(node_names) is None

    def has_room(self, shape: Shape, node: str) -> None:
        """Record that a background search found room on the node. `choose` judges that node when its effort leaves
        others unknown. So frequent changes and many shapes cannot hide free room from a pod.
        """
        if len(self._rooms) >= MOST_ROOMS:
            self._rooms.clear()
        self._rooms[shape] = node

    def _most_effort(self) -> int:
        return max(MOST_EFFORT * len(self._standings), self._least_most_effort)

    def _effort(self, *, prepared: bool) -> int:
        """The effort left for one answer."""
        return self._breath if prepared else self._most_effort()

    def judge(self, shape: Shape) -> Judge:
        return Judge(shape.request, shape.quota, self._most.gpu_mib, len(self._standings))

    def standing(self, name: str) -> Standing | None:
        """None if the node is gone."""
        return self._standings.get(name)

    def changed_since(self, change: int) -> Iterator[str]:
        """Nodes that were added or changed after the change with this number. `last_change` is the latest number."""
        return (name for name, number in takewhile(lambda item: item[1] > change, reversed(self._changes.items())))

    def _nowhere(self, ranking: Ranking, node_names: Sequence[str]) -> Choice:
        if not node_names:
            return Choice(node=None, error=NO_NODE_OFFERED)
        offered, failed, hopeless = set(node_names), ranking.failed, ranking.hopeless
        # Usually these are all nodes, and copies of the whole cost least.
        if len(offered) == len(failed) + len(hopeless) and offered.issuperset(failed) and offered.issuperset(hopeless):
            return Choice(node=None, failed=dict(failed), hopeless=dict(hopeless))
        unseen = {name for name in offered & self._standings.keys() if name not in failed and name not in hopeless}
        failed = {
            name: failed.get(name, Reason.NOT_LOOKED_AT) for name in node_names if name in failed or name in unseen
        }
        return Choice(
            node=None,
            failed=failed,
            hopeless={
                name: hopeless.get(name) or self._ledger.unregistered(name) for name in node_names if name not in failed
            },
        )

    def _ranking(self, shape: Shape) -> Ranking:
        """The ranking of this shape, brought up to date."""
        self._catch_up()
        ranking = self._rankings.pop(shape, None)
        if ranking is None:
            unjudged = self._orders.get(shape.request.policies.node, NO_ORDER)
            packing = None
            if _packs(shape):
                packing = Packing(shape.request, shape.quota, self._fragmentation, self._site)
            ranking = Ranking(shape, self._standings, unjudged, self._most.gpu_mib, packing)
        ranking.update()
        self._rankings[shape] = ranking
        if len(self._rankings) > self._most_shapes:
            del self._rankings[next(iter(self._rankings))]
        return ranking

    def _catch_up(self) -> None:
        changed = self._ledger.take_changed()
        self._catch_up_with_hosts()
        if not changed:
            return
        self._prepared = None
        largest_mib = self._most.gpu_mib
        self.last_change += 1
        self._makes.forget_beyond(len(self._standings))
        for name in changed:
            self._refresh(name)
        for policy, order in self._orders.items():
            order.put({name: self._unjudged(name, policy) for name in changed})
        if self._most.gpu_mib > largest_mib:
            # The room that a quota leaves was computed with the largest GPU.
            self._rankings.clear()
        for ranking in self._rankings.values():
            ranking.outdate(changed)

    def _catch_up_with_hosts(self) -> None:
        """Only `fgd` reads CPU, memory and the pods that usually come."""
        changed, workload = self._ledger.take_changed_hosts(), self._ledger.workload()
        if workload is not self._fragmentation.workload:
            self._fragmentation = Fragmentation(workload)
            self._sites.clear()
            self._rankings = {shape: each for shape, each in self._rankings.items() if not _packs(shape)}
            self._prepared = None
        if changed and self._sites:
            self._prepared = None
            for name in changed:
                self._sites.pop(name, None)
            for shape, ranking in self._rankings.items():
                if _packs(shape):
                    ranking.outdate(changed)

    def _refresh(self, name: str) -> None:
        usage = self._ledger.usage(name)
        self._changes.pop(name, None)
        if self._sites:
            self._sites.pop(name, None)
        if usage is None:
            self._standings.pop(name, None)
            self._kind_of.pop(name, None)
        else:
            self._changes[name] = self.last_change
            self._standings[name] = self._makes.standing(usage, self._kind(name, usage.node))

    def _site(self, name: str) -> Site:
        site = self._sites.get(name)
        if site is None:
            standing = self._standings[name]
            made = self._fragmentation.site(standing.usage, self._ledger.host_left(name), standing.state)
            site = self._sites[name] = made
        return site

    def _unjudged(self, name: str, policy: NodePolicy) -> Preference | None:
        standing = self._standings.get(name)
        return None if standing is None else preference(policy, name, standing.total, 0)

    def _kind(self, name: str, node: RegisteredNode) -> Kind:
        known, kind = self._kind_of.get(name, (None, None))
        if kind is None or known is not node:
            kind = self._makes.kind(node)
            self._kind_of[name] = node, kind
            self._most.see(node)
        return kind


def _packs(shape: Shape) -> bool:
    return shape.request.policies.node is NodePolicy.FGD


class _Most:
    """The largest GPU and the largest MIG instance ever seen. No GPU gives a container more than that."""

    def __init__(self) -> None:
        self.gpu_mib = self._instance_mib = self._instance_cores = 0

    def see(self, node: RegisteredNode) -> None:
        profiles = list(chain.from_iterable(device.mig_profiles for device in node.devices))
        self.gpu_mib = max(self.gpu_mib, *(device.memory_mib for device in node.devices))
        self._instance_mib = max(self._instance_mib, *(profile.memory_mib for profile in profiles), 0)
        self._instance_cores = max(self._instance_cores, *(profile.cores for profile in profiles), 0)

    def taken(self, needs: Iterable[ContainerNeed | None]) -> tuple[int, int, int]:
        """Memory in MiB, cores and GPUs that a pod takes of its quota at most. A quota that admits them refuses
        nothing.
        """
        memory_mib = cores = gpus = 0
        for need in needs:
            if need is not None:
                memory_mib += need.count * max(need.reserved_mib(self.gpu_mib), self._instance_mib)
                cores += need.count * max(need.reserved_cores, self._instance_cores)
                gpus += need.count
        return memory_mib, cores, gpus
