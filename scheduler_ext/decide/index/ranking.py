"""Keeps the cluster's nodes in the order in which pods of one shape take them, from one pod to the next."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import cast

from proto.devices import PodShares
from scheduler_ext.cluster.snapshot import NodeUsage, Quota
from scheduler_ext.decide.decision import place
from scheduler_ext.decide.fgd import HIGHEST_LEVEL
from scheduler_ext.decide.index.node_states import Standing
from scheduler_ext.decide.index.order import Order
from scheduler_ext.decide.index.packing import Packing
from scheduler_ext.decide.index.verdicts import Judge
from scheduler_ext.decide.preference import Preference, compares_connections, preference
from scheduler_ext.decide.unresolvable import Unfit
from scheduler_ext.requests import GpuRequest

PLACING = 5
"""Effort per node for upper bounds: half of what one answer may take. Beyond that, nodes count as the best."""
LOOKING_AHEAD = 500
"""Effort, as `Judge` counts it, for an answer that may never be requested."""

_asked = attrgetter("needs", "kinds", "policies", "filter", "numa_bound", "node_topology", "host")
"""All fields of a request that do not say whose it is."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shape:
    """What two pods have in common if they ask the same of every node: their request, and what their quota leaves.

    `request` is that of any pod of the shape.
    """

    request: GpuRequest
    quota: Quota | None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Shape):
            return NotImplemented
        return self.quota == other.quota and _asked(self.request) == _asked(other.request)

    def __hash__(self) -> int:
        """Hash the fields that nearly always differ: hashing a whole request costs more than comparing two."""
        return hash(self.request.needs)


@dataclass(frozen=True, slots=True)
class Sought:
    """The result of a search. `node` is the best one, None if none fits. It is not final until `done`."""

    node: str | None
    done: bool = True


class Ranking:
    """Whether and how well pods of one shape fit on each node.

    Until it is judged, a node is placed by the best result that it can have. It is judged when it comes first.
    """

    def __init__(
        self,
        shape: Shape,
        standings: Mapping[str, Standing],
        unjudged: Order,
        largest_mib: int,
        packing: Packing | None = None,
    ) -> None:
        """`standings` are read whenever a node is judged. `unjudged` is their order by the pod's node policy alone.

        With `packing` the node policy is `fgd`, and `unjudged` is not read: the order is made step by step.
        """
        self._packing = packing
        self._shape = shape
        self._standings = standings
        self._judge = Judge(shape.request, shape.quota, largest_mib, len(standings))
        self._outdated: set[str] = set()
        self._order = self._first_order(unjudged) if packing is None else Order()
        self._unplaced = [] if packing is None else list(standings)
        """Nodes that are not in the order yet, and the preferences of others that are not."""
        self._hopes: dict[str, Preference] = {}
        self._placing = PLACING * len(standings)
        self._fits: dict[str, Preference] = {}
        self._failed: dict[str, str] = {}
        self._hopeless: dict[str, str] = {}
        self._ahead: tuple[NodeUsage, PodShares] | None = None

    @property
    def fits(self) -> Mapping[str, Preference]:
        """Judged nodes that fit."""
        return self._fits

    @property
    def failed(self) -> Mapping[str, str]:
        """The reasons of judged nodes that do not fit and that eviction may help. `hopeless` has the others."""
        return self._failed

    @property
    def hopeless(self) -> Mapping[str, str]:
        return self._hopeless

    def outdate(self, names: Iterable[str]) -> None:
        """Mark nodes that changed, were added or were removed."""
        self._outdated.update(names)

    def update(self) -> None:
        """Forget what was found out about outdated nodes."""
        if not self._outdated:
            return
        names, self._outdated = self._outdated, set()
        for name in names:
            self._fits.pop(name, None)
            self._failed.pop(name, None)
            self._hopeless.pop(name, None)
            self._hopes.pop(name, None)
        self._order.put({name: self._hoped(name) for name in names})

    def seek(self, offered: Collection[str] | None = None, effort: int | None = None) -> Sought:
        """Find the node that `choose_node` would take of those offered, or of all. Spends at most about `effort`, as
        `Judge` counts it.
        """
        known, made = self._fits, self._judge.effort
        until = None if effort is None else made.made + effort
        if self._unplaced and not self._place_all(until):
            return Sought(None, done=False)
        judged: dict[str, Preference | None] = {}
        names: Collection[str] = self._standings if offered is None else offered
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
            if name in known:
                best = entry
                break
            if until is not None and made.made >= until:
                done = False
                break
            found = judged[name] = self._judged(name)
            if found is not None and (best is None or found < best):
                best = found
        self._order.put(judged)
        return Sought(best[2] if best is not None and done else None, done)

    def best_known(self, offered: Collection[str]) -> str | None:
        """The best of the judged nodes that fit."""
        names = set(offered)
        best = min((fits for name, fits in self._fits.items() if name in names), default=None)
        return None if best is None else best[2]

    def judge(self, names: Iterable[str], effort: int | None = None) -> bool:
        """Judge these nodes with at most about `effort`. Returns whether all of them are judged."""
        if len(self._order) == len(self._fits) and not self._unplaced:
            return True
        until = None if effort is None else self._judge.effort.made + effort
        judged: dict[str, Preference | None] = {}
        done = True
        for name in names:
            if self._is_judged(name) or name not in self._standings:
                continue
            if until is not None and self._judge.effort.made >= until:
                done = False
                break
            judged[name] = self._judged(name)
        self._order.put(judged)
        return done

    def look_ahead(self) -> None:
        """Choose the GPUs on the first node before a request asks."""
        self.update()
        node = self.seek(effort=LOOKING_AHEAD).node
        if node is not None:
            usage = self._standings[node].usage
            self._ahead = usage, self.shares(usage)

    def shares(self, usage: NodeUsage) -> PodShares:
        """The pod's GPUs on a node that fits."""
        if self._ahead is not None and self._ahead[0] is usage:
            return self._ahead[1]
        return cast("PodShares", place(self._shape.request, usage, self._shape.quota))

    def _place_all(self, until: int | None) -> bool:
        """Bring every node into the order. Returns whether that was done before the effort reached `until`."""
        effort = self._judge.effort
        began = effort.made
        while self._unplaced:
            if until is not None and effort.made >= until:
                self._placing -= effort.made - began
                return False
            name = self._unplaced.pop()
            hoped = self._hoped(name, bounded=effort.made - began < self._placing)
            if hoped is not None:
                self._hopes[name] = hoped
        self._order.put({name: hoped for name, hoped in self._hopes.items() if not self._is_judged(name)})
        self._hopes = {}
        return True

    def _is_judged(self, name: str) -> bool:
        return name in self._fits or name in self._failed or name in self._hopeless

    def _first_order(self, unjudged: Order) -> Order:
        if not compares_connections(self._shape.request):
            return unjudged.copy()
        standings = self._standings
        layouts = {standing.kind.layout: standing for standing in standings.values()}
        most = {layout: self._judge.most(standing) for layout, standing in layouts.items()}
        if len(set(most.values())) == 1:
            # This holds nearly always; reading each node's layout takes several times as long.
            (same,) = set(most.values())
            return Order([(-same, total, name) for _, total, name in unjudged])
        return Order([(-most[standings[name].kind.layout], total, name) for _, total, name in unjudged])

    def _hoped(self, name: str, *, bounded: bool = True) -> Preference | None:
        """None if the node is gone."""
        standing = self._standings.get(name)
        if standing is None:
            return None
        level = 0
        if self._packing is not None:
            level = self._packing.most(name, self._judge.effort) if bounded else HIGHEST_LEVEL
        return preference(self._shape.request.policies.node, name, standing.total, self._judge.most(standing), level)

    def _judged(self, name: str) -> Preference | None:
        standing = self._standings[name]
        found = self._judge.judge(standing)
        if isinstance(found, Unfit):
            (self._hopeless if found.hopeless else self._failed)[name] = found.reason
            return None
        level = 0 if self._packing is None else self._packing.level(name, standing, self._judge.effort)
        fits = self._fits[name] = preference(self._shape.request.policies.node, name, standing.total, found, level)
        return fits
