"""The nodes of the cluster in the order in which pods of one shape take them, kept from one pod to the next."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import cast

from proto.devices import PodShares
from scheduler_ext.cluster.registered import RegisteredNode
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage, Quota
from scheduler_ext.requests import ContainerNeed, GpuRequest
from scheduler_ext.scheduling.best_subset import is_exact
from scheduler_ext.scheduling.decide import place
from scheduler_ext.scheduling.fit import Rules, fit
from scheduler_ext.scheduling.hopeless import Unfit, unfit_of
from scheduler_ext.scheduling.misfit import Misfit
from scheduler_ext.scheduling.nodes import Preference, compares_connections, connected, preference
from scheduler_ext.scheduling.states import Kind, State

MOST_KNOWN_STATES = 8_000
FEW = 100
"""So many nodes are put into their places one by one; more of them are sorted in at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A node as it is now. Nodes in equal `state` serve a pod equally well; `total` is the node's score."""

    usage: NodeUsage
    kind: Kind
    state: State
    total: float


_asked = attrgetter("needs", "kinds", "policies", "filter", "numa_bound", "node_topology")
"""Of a request: everything but whose it is."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shape:
    """What makes two pods ask the same of every node: everything but who they are, and what their quota leaves.

    `request` is that of any pod of the shape.
    """

    request: GpuRequest
    quota: Quota | None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Shape):
            return NotImplemented
        return self.quota == other.quota and _asked(self.request) == _asked(other.request)

    def __hash__(self) -> int:
        """Of what nearly always differs: hashing a whole request costs more than comparing two."""
        return hash(self.request.needs)


class Ranking:
    """Whether and how well pods of one shape fit on each node."""

    def __init__(self, shape: Shape, names: Iterable[str]) -> None:
        self._shape = shape
        self._outdated = set(names)
        filters = shape.request.filter
        self._alike = filters.uuids is None and not filters.refused_uuids
        """Whether nodes in equal state are equal for the pod: not when it names single GPUs."""
        self._one_by_one = _one_by_one(shape) if self._alike else None
        self._known: dict[State, int | Unfit] = {}
        """By state, or by what each GPU says: the connection between the pod's GPUs, or why it does not fit."""
        self._order: list[Preference] = []
        self._fits: dict[str, Preference] = {}
        self._failed: dict[str, str] = {}
        self._hopeless: dict[str, str] = {}
        self._ahead: tuple[NodeUsage, PodShares] | None = None

    @property
    def fits(self) -> Mapping[str, Preference]:
        return self._fits

    @property
    def failed(self) -> Mapping[str, str]:
        """The reasons of the other nodes; those apart where evicting pods would not help."""
        return self._failed

    @property
    def hopeless(self) -> Mapping[str, str]:
        return self._hopeless

    def outdate(self, names: Iterable[str]) -> None:
        """These nodes have changed, come or gone."""
        self._outdated.update(names)

    def update(self, standings: Mapping[str, Standing]) -> None:
        """Looks again at the nodes that are out of date; one that is not in `standings` is gone."""
        if not self._outdated:
            return
        names, self._outdated = self._outdated, set()
        before = {name: self._fits.pop(name, None) for name in names}
        for name in names:
            self._failed.pop(name, None)
            self._hopeless.pop(name, None)
            if name in standings:
                self._examine(name, standings[name])
        if len(names) > FEW:
            self._order = sorted(self._fits.values())
            return
        for name, old in before.items():
            if old is not None:
                del self._order[bisect_left(self._order, old)]
            if name in self._fits:
                insort(self._order, self._fits[name])

    def best(self, offered: Sequence[str]) -> str | None:
        """The node that `choose_node` would take of those offered."""
        if not self._order:
            return None
        first = self._order[0][2]
        # Nearly always so, and a set of all names costs several times as much as looking for one.
        if first in offered:
            return first
        names = set(offered)
        return next((name for _, _, name in self._order if name in names), None)

    def look_ahead(self, standings: Mapping[str, Standing]) -> None:
        """Chooses the GPUs on the node that comes first, before anybody asks."""
        self.update(standings)
        if self._order:
            usage = standings[self._order[0][2]].usage
            self._ahead = usage, self.shares(usage)

    def shares(self, usage: NodeUsage) -> PodShares:
        """On a node that fits."""
        if self._ahead is not None and self._ahead[0] is usage:
            return self._ahead[1]
        return cast("PodShares", place(self._shape.request, usage, self._shape.quota))

    def _examine(self, name: str, standing: Standing) -> None:
        found = self._found(standing) if self._alike else self._placed(standing.usage)
        if isinstance(found, Unfit):
            (self._hopeless if found.hopeless else self._failed)[name] = found.reason
        else:
            self._fits[name] = preference(self._shape.request.policies.node, name, standing.total, found)

    def _found(self, standing: Standing) -> int | Unfit:
        state, one_by_one = standing.state, self._one_by_one
        if one_by_one is not None and one_by_one.says_all(standing):
            state = (standing.kind, *one_by_one.answers(standing))
        found = self._known.get(state)
        if found is None:
            if len(self._known) >= MOST_KNOWN_STATES:
                self._known.clear()
            found = self._known[state] = self._placed(standing.usage)
        return found

    def _placed(self, usage: NodeUsage) -> int | Unfit:
        shares = place(self._shape.request, usage, self._shape.quota)
        if isinstance(shares, Misfit):
            return unfit_of(shares)
        return connected(shares, usage.node.pair_scores) if compares_connections(self._shape.request) else 0


class _OneByOne:
    """Which GPUs of a node would serve one container by themselves; each GPU of a kind in the same use says the same.

    That is all there is to know of nodes not in MIG mode, for pods for which no GPU's answer depends on another GPU.
    How well the best-connected of the GPUs that serve are connected follows from it as well, where that is found
    exactly and whichever GPU comes first: only among equally good choices the order decides.
    """

    def __init__(self, request: GpuRequest, need: ContainerNeed) -> None:
        self._request = request
        self._compares = compares_connections(request)
        self._count = need.count
        self._need = replace(need, count=1)
        self._known: dict[tuple[int, ...], str] = {}

    def says_all(self, standing: Standing) -> bool:
        kind = standing.kind
        return not kind.mig and (
            not self._compares or (kind.mutual and is_exact(len(standing.usage.gpus), self._count))
        )

    def answers(self, standing: Standing) -> list[str]:
        """For each GPU in order why it does not serve, or nothing."""
        kind, known, found = standing.kind.number, self._known, []
        for position, gpu in enumerate(standing.usage.gpus):
            key = (kind, position, gpu.slots, gpu.memory_mib, gpu.cores)
            answer = known.get(key)
            if answer is None:
                if len(known) >= MOST_KNOWN_STATES:
                    known.clear()
                answer = known[key] = self._answer(standing.usage.node, gpu)
            found.append(answer)
        return found

    def _answer(self, node: RegisteredNode, gpu: GpuUsage) -> str:
        request = self._request
        rules = Rules(node=node, filter=request.filter, policy=request.policies.gpu, numa_bound=False)
        shares = fit(self._need, [gpu], rules, None)
        return shares.reason if isinstance(shares, Misfit) else ""


def _one_by_one(shape: Shape) -> _OneByOne | None:
    """None for pods of several containers, under a quota that may refuse, or on one NUMA node."""
    needs = [need for need in shape.request.needs if need is not None]
    if len(needs) > 1 or shape.quota is not None or shape.request.numa_bound:
        return None
    return _OneByOne(shape.request, needs[0])
