"""Keeps the cluster's nodes in the order in which pods of one shape take them, from one pod to the next."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from proto.devices import PodShares
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.snapshot import NodeUsage
from scheduler_ext.decide.effort import make_room
from scheduler_ext.decide.fgd import HIGHEST_LEVEL
from scheduler_ext.decide.index.levels import Levels
from scheduler_ext.decide.index.node_states import NodeState, NodeStates, Order
from scheduler_ext.decide.index.verdicts import PodShape, ShapeJudge
from scheduler_ext.decide.misfit import Misfit, NodeRefusal
from scheduler_ext.decide.place import place, pods_on
from scheduler_ext.decide.score import Preference, compares_connections, gpus_of, is_spared, preference
from scheduler_ext.policies import NodePolicy
from scheduler_ext.requests import GpuRequest

EFFORT_OF_BOUNDS = 5
"""Effort per node for upper bounds: half of what one answer may take. Beyond that, nodes count as the best."""
EFFORT_AHEAD = 500
"""Effort for an answer that may never be requested."""
MOST_MEMBERS_KNOWN = 20_000
"""States of nodes whose number of pods is remembered."""


@dataclass(frozen=True, slots=True)
class BestNode:
    """The best node that was found; None if none fits, or if the search is not `done`."""

    node: str | None
    done: bool = True


@dataclass(frozen=True, slots=True)
class _SharesAhead:
    """The GPUs that the next pod of the shape gets if the node does not change."""

    usage: NodeUsage
    shares: PodShares


class Ranking:
    """A record of whether and how well pods of one shape fit on each node.

    A node is placed by the best result that it can have until it is judged: when it comes first.
    """

    def __init__(self, shape: PodShape, states: NodeStates) -> None:
        """Reads `states` whenever a node is judged."""
        self._shape = shape
        self._policy = shape.request.policies.node
        self._states = states.by_name
        self._whole, self._gpus = states.whole, gpus_of(shape.request)
        self._judge = ShapeJudge(shape, states.largest.gpu_mib, len(self._states))
        self._outdated: set[str] = set()
        self._levels: Levels | None = None
        self._unplaced: list[str] = []
        """Nodes that are not in the order yet, with `fgd`; `_bounds` has the preferences of others that are not."""
        self._bounds: dict[str, Preference] = {}
        self._bounds_effort = EFFORT_OF_BOUNDS * len(self._states)
        if self._policy is NodePolicy.FGD:
            self._levels = Levels(shape, states.fragmentation, states.site)
            self._unplaced, self._order = list(self._states), Order()
        else:
            spares_all = self._gpus < min(self._whole.values(), default=0)
            orders = states.sparing if spares_all else states.orders
            self._order = self._first_order(orders[self._policy])
            if not spares_all:
                self._order.put({name: self._bound(name) for name in self._whole if self._is_spared(name)})
        self.fits: dict[str, Preference] = {}
        """The judged nodes that fit."""
        self.failed: dict[str, str] = {}
        """The reasons of judged nodes that do not fit and that eviction may help. `unresolvable` has the others."""
        self.unresolvable: dict[str, str] = {}
        self.words: dict[str, str] = {}
        """The reasons of both for people."""
        self._members: dict[tuple[int, str], int] = {}
        """The number of pods that fit on a node, by its state."""
        self._ahead: _SharesAhead | None = None

    def outdate(self, names: Iterable[str]) -> None:
        """Marks nodes that changed, were added or were removed."""
        self._outdated.update(names)

    def update(self) -> None:
        """Forgets what was found out about outdated nodes."""
        if not self._outdated:
            return
        names, self._outdated = self._outdated, set()
        for name in names:
            for known in (self.fits, self.failed, self.unresolvable, self.words, self._bounds):
                known.pop(name, None)
        self._order.put({name: self._bound(name) for name in names})

    def find(self, offered: Collection[str] | None = None, effort: int | None = None) -> BestNode:
        """Finds the node that `decide` would take of those offered, or of all. Spends at most about `effort`."""
        if offered is not None and len(offered) == 1:
            done = self.judge(offered, effort)
            return BestNode(next((name for name in offered if name in self.fits), None), done)
        limit = self._limit(effort)
        if self._unplaced and not self._place_all(limit):
            return BestNode(None, done=False)
        judged: dict[str, Preference | None] = {}
        names: Collection[str] = self._states if offered is None else offered
        best: Preference | None = None
        done, is_first, is_list = True, True, isinstance(names, Sequence)
        for entry in self._order:
            if best is not None and best <= entry:
                break
            name = entry[2]
            if is_list and not is_first:
                # The first is the one nearly always, and a set costs several times as much as searching for it.
                names, is_list = set(names), False
            is_first = False
            if name not in names:
                continue
            if name in self.fits:
                best = entry
                break
            if self._is_over(limit):
                done = False
                break
            found = judged[name] = self._judged(name)
            if found is not None and (best is None or found < best):
                best = found
        self._order.put(judged)
        return BestNode(best[2] if best is not None and done else None, done)

    def best_known(self, offered: Collection[str]) -> str | None:
        """Returns the best of the judged nodes that fit; None if none does."""
        names = set(offered)
        best = min((fits for name, fits in self.fits.items() if name in names), default=None)
        return None if best is None else best[2]

    def judge(self, names: Iterable[str], effort: int | None = None) -> bool:
        """Judges these nodes with at most about `effort`. Returns whether all of them are judged."""
        if len(self._order) == len(self.fits) and not self._unplaced:
            return True
        limit, judged, done = self._limit(effort), dict[str, Preference | None](), True
        for name in names:
            if self._is_judged(name) or name not in self._states:
                continue
            if self._is_over(limit):
                done = False
                break
            judged[name] = self._judged(name)
        self._order.put(judged)
        return done

    def look_ahead(self) -> None:
        """Chooses the GPUs on the first node before a request comes."""
        self.update()
        node = self.find(effort=EFFORT_AHEAD).node
        if node is not None:
            self._ahead = _SharesAhead(self._states[node].usage, self.shares(node))

    def shares(self, node: str) -> PodShares:
        """Returns the pod's GPUs on a node that fits."""
        usage = self._states[node].usage
        if self._ahead is not None and self._ahead.usage is usage:
            return self._ahead.shares
        return cast("PodShares", place(self._shape.request, usage, self._shape.quota))

    def count(self, names: Iterable[str], effort: int) -> bool:
        """Counts the pods of the shape that fit on each node, with at most about `effort`. Returns whether all are
        counted.
        """
        limit = self._limit(effort)
        for name in names:
            state = self._states.get(name)
            if state is None or self._key(name, state) in self._members:
                continue
            if self._is_over(limit):
                return False
            make_room(self._members, MOST_MEMBERS_KNOWN)
            # The judgement finds the many nodes without any room in a short time.
            refused = isinstance(self._judge.judge(state), NodeRefusal)
            counted = 0 if refused else pods_on(state.usage, self._shape.request, self._judge.effort)
            self._members[self._key(name, state)] = counted
        return True

    def members(self, node: str) -> int:
        """Returns how many pods of the shape fit on the node one after the other; 0 if they are not counted."""
        return self._members.get(self._key(node, self._states[node]), 0)

    def _key(self, name: str, state: NodeState) -> tuple[int, str]:
        """Returns what nodes with equal counts have in common: those in one state, unless the pod names their GPUs."""
        named = self._shape.named
        return state.number, name if named and any(gpu.device.uuid in named for gpu in state.usage.gpus) else ""

    def misfit(self, node: str) -> Misfit | None:
        """Returns why the pod does not fit on the node, with figures; None if it fits or the node is gone."""
        state = self._states.get(node)
        found = None if state is None else place(self._shape.request, state.usage, self._shape.quota)
        return found if isinstance(found, Misfit) else None

    def _limit(self, effort: int | None) -> int | None:
        return None if effort is None else self._judge.effort.made + effort

    def _is_over(self, limit: int | None) -> bool:
        return limit is not None and self._judge.effort.made >= limit

    def _is_judged(self, name: str) -> bool:
        return name in self.fits or name in self.failed or name in self.unresolvable

    def _place_all(self, limit: int | None) -> bool:
        """Brings every node into the order. Returns whether that was done before the effort reached the limit."""
        effort = self._judge.effort
        began = effort.made
        while self._unplaced:
            if self._is_over(limit):
                self._bounds_effort -= effort.made - began
                return False
            name = self._unplaced.pop()
            bound = self._bound(name, exact=effort.made - began < self._bounds_effort)
            if bound is not None:
                self._bounds[name] = bound
        self._order.put({name: bound for name, bound in self._bounds.items() if not self._is_judged(name)})
        self._bounds = {}
        return True

    def _first_order(self, unjudged: Order) -> Order:
        if not compares_connections(self._shape.request):
            return unjudged.copy()
        layouts = {state.model.layout: state for state in self._states.values()}
        best = {layout: self._judge.best_connection(state) for layout, state in layouts.items()}
        if len(set(best.values())) == 1:
            # All layouts are equally good nearly always; reading each node's layout takes several times as long.
            (same,) = set(best.values())
            return Order([(-same, total, name) for _, total, name in unjudged])
        return Order([(-best[self._states[name].model.layout], total, name) for _, total, name in unjudged])

    def _bound(self, name: str, *, exact: bool = True) -> Preference | None:
        """Returns the best preference that the node can have; None if the node is gone."""
        state = self._states.get(name)
        if state is None:
            return None
        level = 0
        if self._levels is not None:
            level = self._levels.most(name, self._judge.effort) if exact else HIGHEST_LEVEL
        connection = self._judge.best_connection(state)
        return preference(self._policy, name, state.score, connection, level, spared=self._is_spared(name))

    def _is_spared(self, name: str) -> bool:
        return name in self._whole and is_spared(self._states[name].usage, self._gpus)

    def _judged(self, name: str) -> Preference | None:
        state = self._states[name]
        found = self._judge.judge(state)
        if isinstance(found, NodeRefusal):
            (self.unresolvable if found.unresolvable else self.failed)[name] = found.reason
            self.words[name] = found.words
            return None
        level = 0 if self._levels is None else self._levels.level(name, state.number, self._judge.effort)
        spared = self._is_spared(name)
        fits = self.fits[name] = preference(self._policy, name, state.score, found, level, spared=spared)
        return fits


MOST_SHAPES = 32
"""Rankings kept. Each takes about 1 MB at 5 000 nodes, up to 3 MB for pods with several containers."""


class Rankings:
    """A ranking for each of these shapes."""

    def __init__(self, ledger: Ledger, states: NodeStates, most_shapes: int | None) -> None:
        self._ledger = ledger
        self._states = states
        self._most_shapes = MOST_SHAPES if most_shapes is None else most_shapes
        self._by_shape: dict[PodShape, Ranking] = {}
        """The ranking used last comes last. An `OrderedDict` would compare shapes three times where this compares once.
        """
        self.changes = 0
        """A number that grows when a node changes: the best node of before may not be the best any more."""

    def shape(self, request: GpuRequest) -> PodShape:
        """Returns the shape of the pod, with what its quota leaves now."""
        self.catch_up()
        quota = self._ledger.quotas.left(request.namespace, request.quota_class)
        if quota is not None and self._states.largest.is_covered(request.needs, quota):
            quota = None
        return PodShape(request=request, quota=quota)

    def of(self, shape: PodShape) -> Ranking:
        """Returns the ranking of this shape, without what was found out about nodes that changed since."""
        ranking = self._by_shape.pop(shape, None)
        if ranking is None:
            ranking = Ranking(shape, self._states)
        ranking.update()
        self._by_shape[shape] = ranking
        if len(self._by_shape) > self._most_shapes:
            del self._by_shape[next(iter(self._by_shape))]
        return ranking

    def catch_up(self) -> None:
        """Learns what has changed in the ledger."""
        changes = self._states.catch_up()
        if changes is None:
            return
        self.changes += 1
        if changes.larger_gpu:
            self._by_shape.clear()
        if changes.workload:
            self._by_shape = {shape: each for shape, each in self._by_shape.items() if not _packs(shape)}
        for shape, ranking in self._by_shape.items():
            ranking.outdate(changes.nodes)
            if _packs(shape):
                ranking.outdate(changes.hosts)

    def look_ahead(self) -> None:
        """Finds out what the next pod of the shape requested last would have to wait for."""
        if self._by_shape:
            next(reversed(self._by_shape.values())).look_ahead()


def _packs(shape: PodShape) -> bool:
    return shape.request.policies.node is NodePolicy.FGD
