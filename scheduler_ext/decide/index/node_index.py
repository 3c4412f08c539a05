"""The interface of the index. README.md explains how it works."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import countOf
from typing import NamedTuple

from proto.devices import PodShares
from proto.kubernetes.requests import HostAmount
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.registered import UNREGISTERED
from scheduler_ext.cluster.snapshot import NodeUsage
from scheduler_ext.decide.decision import MOST_NODES_NAMED, NO_NODE_OFFERED, NodeChoice, Tally, choice_of, decide
from scheduler_ext.decide.effort import Effort
from scheduler_ext.decide.fgd import NOTHING_LOST
from scheduler_ext.decide.index.node_states import NodeStates
from scheduler_ext.decide.index.polls import Polls
from scheduler_ext.decide.index.ranking import BestNode, Ranking, Rankings
from scheduler_ext.decide.index.verdicts import PodShape
from scheduler_ext.decide.misfit import Misfit
from scheduler_ext.decide.place import place, pods_on, with_pod
from scheduler_ext.decide.reasons import Reason
from scheduler_ext.decide.score import Preference
from scheduler_ext.domains.levels import Domains
from scheduler_ext.domains.plan import Room
from scheduler_ext.policies import NodePolicy
from scheduler_ext.requests import GpuRequest

STEP_EFFORT = 500
"""Effort after which other requests get their turn: about one millisecond."""
MOST_EFFORT = 10
"""Effort for one answer, per node of the cluster: about 20 ms at 1 000 nodes. The next answer judges the rest."""
LEAST_MOST_EFFORT = 10_000
"""Smallest limit of effort, for a small cluster."""
TALLY_EFFORT = 100
"""Effort spent on counting the nodes that fit."""


PodsBeside = Mapping[str, Sequence[GpuRequest]]
"""Requests of pods that are to be on a node, by node."""
NO_PODS: PodsBeside = {}


class _Prepared(NamedTuple):
    """The best node found for the next answer, among these names, at a number of changes."""

    ranking: Ranking
    changes: int
    names: Collection[str]
    best: BestNode


class NodeIndex:
    """The nodes of a ledger, ranked for the pod shapes requested last.

    An answer costs only what changed since the last pod of the same shape: usually the node that pod went to. The
    ranking gives the best of the offered nodes. For the first pod of a shape, nodes are judged in the order of
    preference until one fits.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        step_effort: int = STEP_EFFORT,
        least_most_effort: int = LEAST_MOST_EFFORT,
        most_shapes: int | None = None,
    ) -> None:
        self._ledger = ledger
        self._states = NodeStates(ledger)
        self._polls = Polls(self._states)
        self._step_effort = step_effort
        self._least_most_effort = least_most_effort
        self._rankings = Rankings(ledger, self._states, most_shapes)
        self._prepared: _Prepared | None = None

    def prepare(self, request: GpuRequest, node_names: Sequence[str], *, every: bool = False) -> Iterator[None]:
        """Finds out what `choose`, or with `every` what `fitting`, needs; in steps of about a millisecond.

        The ledger may change between steps: changed nodes are judged again.
        """
        shape = self._rankings.shape(request)
        if self._ledger.records.bound(request.uid) is not None:
            return
        offered: Collection[str] = node_names
        for _ in range(max(self._most_effort() // self._step_effort, 1)):
            ranking = self._rankings.of(shape)
            if every:
                done = ranking.judge(node_names, self._step_effort)
            else:
                best = ranking.find(offered, self._step_effort)
                self._prepared, done = _Prepared(ranking, self._rankings.changes, node_names, best), best.done
            if done:
                return
            # One step is enough nearly always, and needs no set.
            offered = offered if every or isinstance(offered, set) else set(offered)
            yield
            self._rankings.catch_up()

    def choose(self, request: GpuRequest, node_names: Collection[str], *, prepared: bool = False) -> NodeChoice:
        """Chooses as `decide` does among `node_names`. GPUs that the pod's own reservation holds count as taken.

        After `prepare` this takes at most about a millisecond, whatever has changed since.
        """
        if self._ledger.records.bound(request.uid) is not None:
            return choice_of(decide(request, self._ledger.snapshot(request.uid), node_names))
        shape = self._rankings.shape(request)
        ranking = self._rankings.of(shape)
        best = self._best_prepared(ranking, node_names)
        if best is None:
            best = ranking.find(node_names, self._effort(prepared=prepared))
        node = best.node
        if not best.done:
            ranking.judge(filter(None, [self._polls.rooms.pop(shape, None)]))
            # There is no time to search for a better node, so one that fits is enough.
            node = self._any(ranking, node_names)
        if node is None:
            return self._nowhere(ranking, node_names)
        return NodeChoice(node=node, shares=ranking.shares(node), tally=lambda: self._tally(ranking, node, node_names))

    def others(self, request: GpuRequest, node_names: Sequence[str], best: str, most: int) -> Mapping[str, PodShares]:
        """Returns what the pod would get on the next best nodes after `best`, at most `most` of them."""
        found: dict[str, PodShares] = {}
        if most < 1:
            return found
        ranking, left = self._rankings.of(self._rankings.shape(request)), set(node_names) - {best}
        while len(found) < most and (node := ranking.find(left, self._step_effort).node) is not None:
            found[node] = ranking.shares(node)
            left.remove(node)
        return found

    def fitting(
        self, request: GpuRequest, node_names: Sequence[str], *, prepared: bool = False
    ) -> Mapping[str, Preference]:
        """Returns the preferences of the offered nodes that fit, as `decide` finds them. Reservations count as in
        `choose`.
        """
        if self._ledger.records.bound(request.uid) is not None:
            return decide(request, self._ledger.snapshot(request.uid), node_names).preferences
        ranking = self._rankings.of(self._rankings.shape(request))
        ranking.judge(node_names, self._effort(prepared=prepared))
        return {name: ranking.fits[name] for name in node_names if name in ranking.fits}

    def fits_nowhere(self, request: GpuRequest, node_names: Sequence[str], *, prepared: bool = False) -> bool:
        """Returns whether the pod is known to fit on none of these nodes. False also if the effort for one answer does
        not show it.
        """
        if self._ledger.records.bound(request.uid) is not None:
            return False
        ranking = self._rankings.of(self._rankings.shape(request))
        return ranking.judge(node_names, self._effort(prepared=prepared)) and ranking.best_known(node_names) is None

    def prepare_rooms(self, request: GpuRequest, node_names: Sequence[str]) -> Iterator[None]:
        """Counts what `rooms` needs, in steps of about a millisecond."""
        for _ in range(max(self._most_effort() // self._step_effort, 1)):
            self._rankings.catch_up()
            if self._rankings.of(PodShape(request=request, quota=None)).count(node_names, self._step_effort):
                return
            yield

    def rooms(self, request: GpuRequest, node_names: Collection[str], beside: PodsBeside = NO_PODS) -> list[Room]:
        """Returns for how many pods of the shape each node has GPUs, once those `beside` are there. The best nodes for
        one such pod come first. No quota counts. What is not counted within the effort for one answer is 0; the next
        answer counts it.
        """
        self._rankings.catch_up()
        ranking, states, names = self._rankings.of(PodShape(request=request, quota=None)), self._states, set(node_names)
        ranking.count(node_names, self._most_effort())
        policy = NodePolicy.BINPACK if request.policies.node is NodePolicy.FGD else request.policies.node
        found = []
        for *_, name in states.orders[policy]:
            if name in names:
                usage = states.by_name[name].usage
                members = _left_beside(usage, request, beside[name]) if name in beside else ranking.members(name)
                found.append(Room(name, members, usage.node.domains))
        return found

    def has_domains(self) -> bool:
        """Returns whether any node shares a domain with others."""
        self._rankings.catch_up()
        return bool(self._states.together)

    def domains(self, node_names: Iterable[str]) -> list[Domains]:
        """Returns the domains of each node; none for a node that is not registered."""
        self._rankings.catch_up()
        known = (self._states.by_name.get(name) for name in node_names)
        return [{} if state is None else state.usage.node.domains for state in known]

    def without_gpus(self, host: HostAmount, node_names: Iterable[str]) -> Mapping[str, int]:
        """Returns levels for a pod that takes CPU and memory but no GPU. A node without GPUs has that of one that loses
        nothing.
        """
        self._rankings.catch_up()
        states, level = self._states, self._states.fragmentation.without_gpus
        return {name: level(host, states.site(name)) if name in states.by_name else NOTHING_LOST for name in node_names}

    def look_ahead(self) -> None:
        """Finds out now what the next pod would have to wait for, if it has the shape requested last."""
        self._rankings.catch_up()
        self._rankings.look_ahead()

    def poll(self, request: GpuRequest, effort: int) -> bool | None:
        """Returns whether a waiting pod fits on any node. None if the effort did not suffice: the next poll goes on."""
        return self._polls.poll(self._rankings.shape(request), effort)

    def end_polls(self) -> None:
        """Forgets searches for pods that were not polled since the last call."""
        self._polls.end_round()

    def _best_prepared(self, ranking: Ranking, node_names: Collection[str]) -> BestNode | None:
        """Returns what `prepare` found, if it was for the same question; else None."""
        prepared, self._prepared = self._prepared, None
        if prepared is None:
            return None
        known = prepared.ranking is ranking and prepared.changes == self._rankings.changes
        return prepared.best if known and prepared.names is node_names and prepared.best.done else None

    def _any(self, ranking: Ranking, node_names: Collection[str]) -> str | None:
        """Returns the best node that is known to fit; None if none is. If none is known, some nodes are judged."""
        known = ranking.best_known(node_names)
        if known is None:
            ranking.judge(node_names, self._step_effort)
            known = ranking.best_known(node_names)
        return known

    def _most_effort(self) -> int:
        return max(MOST_EFFORT * len(self._states.by_name), self._least_most_effort)

    def _effort(self, *, prepared: bool) -> int:
        """Returns the effort left for one answer."""
        return self._step_effort if prepared else self._most_effort()

    def _tally(self, ranking: Ranking, node: str, node_names: Collection[str]) -> Tally:
        unknown = 0
        if not ranking.judge(node_names, TALLY_EFFORT):
            unknown = len(set(node_names).difference(ranking.fits, ranking.failed, ranking.unresolvable))
        # A set of thousands of names costs more than looking up each of them.
        fitting = countOf(map(ranking.fits.__contains__, node_names), True)
        named = filter(ranking.fits.__contains__, node_names) if fitting <= MOST_NODES_NAMED else (node,)
        states = self._states.by_name
        return Tally(
            fitting=fitting, unknown=unknown, scores={name: states[name].score for name in named if name in states}
        )

    def _nowhere(self, ranking: Ranking, node_names: Collection[str]) -> NodeChoice:
        if not node_names:
            return NodeChoice(node=None, error=NO_NODE_OFFERED)
        offered, failed, lost = set(node_names), ranking.failed, ranking.unresolvable
        # Usually these are all nodes, and copies of the whole cost least.
        if len(offered) == len(failed) + len(lost) and offered.issuperset(failed) and offered.issuperset(lost):
            return _none_fits(ranking, dict(failed), dict(lost))
        unseen = {name for name in offered & self._states.by_name.keys() if name not in failed and name not in lost}
        maybe = {
            name: failed.get(name, Reason.NOT_LOOKED_AT) for name in node_names if name in failed or name in unseen
        }
        away = self._ledger.nodes.unregistered()
        never = {name: lost.get(name) or away.get(name, UNREGISTERED) for name in node_names if name not in maybe}
        return _none_fits(ranking, maybe, never)


def _left_beside(usage: NodeUsage, request: GpuRequest, others: Sequence[GpuRequest]) -> int:
    """Returns how many pods fit once the others are there; none if those do not fit."""
    for other in others:
        shares = place(other, usage, None)
        if isinstance(shares, Misfit):
            return 0
        usage = with_pod(usage, other, shares)
    return pods_on(usage, request, Effort())


def _none_fits(ranking: Ranking, failed: Mapping[str, str], unresolvable: Mapping[str, str]) -> NodeChoice:
    return NodeChoice(
        node=None, failed=failed, unresolvable=unresolvable, words=lambda: ranking.words, misfit=ranking.misfit
    )
