"""The decision for `/filter`: what `decide` decides, without looking at every node for every pod."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import chain

from proto.devices import PodShares
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.registered import RegisteredNode
from scheduler_ext.requests import ContainerNeed, GpuRequest
from scheduler_ext.scheduling.decide import NO_NODE_OFFERED, Decision, decide
from scheduler_ext.scheduling.hopeless import told_apart
from scheduler_ext.scheduling.nodes import Preference
from scheduler_ext.scheduling.priorities import preferences
from scheduler_ext.scheduling.ranking import Ranking, Shape, Standing
from scheduler_ext.scheduling.score import node_score
from scheduler_ext.scheduling.states import Kind, Kinds, state_of

MOST_SHAPES = 32
"""Rankings kept; each takes about 1 MB at 5 000 nodes, up to 3 MB for pods of several containers."""
MOST_NODES_NAMED = 20
"""A choice among more fitting nodes than these names the score of the chosen one only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How many of the offered nodes fit, and their scores; of many nodes that of the chosen one only."""

    fitting: int = 0
    scores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A decision without what nobody reads of a large cluster: why nodes failed when one fits.

    `tally` counts when it is called, as kube-scheduler does not wait for it: usually before the next choice.
    """

    node: str | None
    shares: PodShares = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    """The reason of every node, when none fits; those apart where evicting other pods would not help."""
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
    """The nodes of a ledger, ranked for the shapes of pods that were asked about last.

    An answer costs what has changed since the last one for a pod of this shape: usually the node it went to. Which of
    the offered nodes is best is read off the ranking. The first pod of a shape has every kind of node looked at once.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._kinds = Kinds()
        self._kind_of: dict[str, tuple[RegisteredNode, Kind]] = {}
        self._standings: dict[str, Standing] = {}
        self._rankings: OrderedDict[Shape, Ranking] = OrderedDict()
        """The one used last comes last."""
        self._most = _Most()

    def choose(self, request: GpuRequest, node_names: Sequence[str]) -> Choice:
        """As `decide` does among `node_names`. What a reservation of the pod itself holds counts as taken."""
        if self._ledger.is_bound(request.uid):
            return choice_of(decide(request, self._ledger.snapshot(request.uid), node_names))
        ranking = self._ranking(self.shape(request))
        node = ranking.best(node_names)
        if node is None:
            return self._nowhere(ranking, node_names)
        shares = ranking.shares(self._standings[node].usage)
        return Choice(node=node, shares=shares, tally=lambda: self._tally(ranking, node, node_names))

    def _tally(self, ranking: Ranking, node: str, node_names: Sequence[str]) -> Tally:
        offered = set(node_names)
        # Of all ways to count them this one copies least where most nodes fit.
        fitting = len(offered) - len(offered.difference(ranking.fits))
        named = offered & ranking.fits.keys() if fitting <= MOST_NODES_NAMED else (node,)
        return Tally(
            fitting=fitting, scores={name: self._standings[name].total for name in named if name in self._standings}
        )

    def look_ahead(self) -> None:
        """Does now what the next pod would have to wait for, if it is of the shape that was asked about last."""
        self._catch_up()
        if self._rankings:
            next(reversed(self._rankings.values())).look_ahead(self._standings)

    def fitting(self, request: GpuRequest, node_names: Sequence[str]) -> Mapping[str, Preference]:
        """The offered nodes that fit, as `decide` finds them. Reservations count as in `choose`."""
        if self._ledger.is_bound(request.uid):
            return preferences(request.policies.node, decide(request, self._ledger.snapshot(request.uid), node_names))
        fits = self._ranking(self.shape(request)).fits
        return {name: fits[name] for name in node_names if name in fits}

    def others(self, request: GpuRequest, node_names: Sequence[str], best: str, most: int) -> Mapping[str, PodShares]:
        """What the pod would get on the nodes that come next after the best one; no more than `most` of them."""
        if most < 1:
            return {}
        fits = self.fitting(request, node_names)
        ranking = self._ranking(self.shape(request))
        first = nsmallest(most, (preference for name, preference in fits.items() if name != best))
        return {name: ranking.shares(self._standings[name].usage) for _, _, name in first}

    def has_room(self, shape: Shape) -> bool:
        """Whether such a pod fits on any node. It holds nothing itself."""
        return bool(self._ranking(shape).fits)

    def shape(self, request: GpuRequest) -> Shape:
        """What the pod asks of every node, as its quota stands now."""
        self._catch_up()
        quota = self._ledger.quota(request.namespace)
        covered = quota is None or quota.admits(*self._most.taken(request.needs))
        return Shape(request=request, quota=None if covered else quota)

    def _nowhere(self, ranking: Ranking, node_names: Sequence[str]) -> Choice:
        if not node_names:
            return Choice(node=None, error=NO_NODE_OFFERED)
        offered, failed, hopeless = set(node_names), ranking.failed, ranking.hopeless
        # Usually these are all nodes there are, and copies of the whole cost least.
        if len(offered) == len(failed) + len(hopeless) and offered.issuperset(failed) and offered.issuperset(hopeless):
            return Choice(node=None, failed=dict(failed), hopeless=dict(hopeless))
        return Choice(
            node=None,
            failed={name: failed[name] for name in node_names if name in failed},
            hopeless={
                name: hopeless.get(name) or self._ledger.unregistered(name) for name in node_names if name not in failed
            },
        )

    def _ranking(self, shape: Shape) -> Ranking:
        """Up to date."""
        self._catch_up()
        ranking = self._rankings.pop(shape, None) or Ranking(shape, self._standings)
        ranking.update(self._standings)
        self._rankings[shape] = ranking
        if len(self._rankings) > MOST_SHAPES:
            self._rankings.popitem(last=False)
        return ranking

    def _catch_up(self) -> None:
        changed = self._ledger.take_changed()
        if not changed:
            return
        for name in changed:
            self._refresh(name)
        for ranking in self._rankings.values():
            ranking.outdate(changed)

    def _refresh(self, name: str) -> None:
        usage = self._ledger.usage(name)
        if usage is None:
            self._standings.pop(name, None)
            self._kind_of.pop(name, None)
            return
        kind = self._kind(name, usage.node)
        state, total = state_of(usage, kind), node_score(usage.gpus).total
        self._standings[name] = Standing(usage=usage, kind=kind, state=state, total=total)

    def _kind(self, name: str, node: RegisteredNode) -> Kind:
        known, kind = self._kind_of.get(name, (None, None))
        if kind is None or known is not node:
            kind = self._kinds.kind(node)
            self._kind_of[name] = node, kind
            self._most.see(node)
        return kind


class _Most:
    """The largest GPU and the largest MIG instance ever seen: no GPU serves a container with more than that."""

    def __init__(self) -> None:
        self._gpu_mib = self._instance_mib = self._instance_cores = 0

    def see(self, node: RegisteredNode) -> None:
        profiles = list(chain.from_iterable(device.mig_profiles for device in node.devices))
        self._gpu_mib = max(self._gpu_mib, *(device.memory_mib for device in node.devices))
        self._instance_mib = max(self._instance_mib, *(profile.memory_mib for profile in profiles), 0)
        self._instance_cores = max(self._instance_cores, *(profile.cores for profile in profiles), 0)

    def taken(self, needs: Iterable[ContainerNeed | None]) -> tuple[int, int, int]:
        """Memory in MiB, cores and GPUs a pod takes of its quota at most: one that admits them refuses nothing."""
        memory_mib = cores = gpus = 0
        for need in needs:
            if need is not None:
                memory_mib += need.count * max(need.reserved_mib(self._gpu_mib), self._instance_mib)
                cores += need.count * max(need.reserved_cores, self._instance_cores)
                gpus += need.count
        return memory_mib, cores, gpus
