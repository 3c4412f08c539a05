"""The nodes of the cluster in the order in which pods of one shape take them, kept from one pod to the next."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import cast

from proto.devices import PodShares
from scheduler_ext.cluster.registered import RegisteredNode
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage, Quota
from scheduler_ext.requests import ContainerNeed, GpuRequest
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What makes two pods ask the same of every node: everything but who they are, and what their quota leaves."""

    request: GpuRequest
    quota: Quota | None


def shape_of(request: GpuRequest, quota: Quota | None) -> Shape:
    return Shape(request=replace(request, pod="", namespace="", uid=""), quota=quota)


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
        self._misfits: dict[str, Unfit] = {}

    @property
    def fits(self) -> Mapping[str, Preference]:
        return self._fits

    @property
    def misfits(self) -> Mapping[str, Unfit]:
        return self._misfits

    def outdate(self, names: Iterable[str]) -> None:
        """These nodes have changed, come or gone."""
        self._outdated.update(names)

    def update(self, standings: Mapping[str, Standing]) -> None:
        """Looks again at the nodes that are out of date; one that is not in `standings` is gone."""
        names, self._outdated = self._outdated, set()
        before = {name: self._fits.pop(name, None) for name in names}
        for name in names:
            self._misfits.pop(name, None)
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

    def best(self, offered: AbstractSet[str]) -> str | None:
        """The node that `choose_node` would take of those offered."""
        return next((name for _, _, name in self._order if name in offered), None)

    def shares(self, usage: NodeUsage) -> PodShares:
        """On a node that fits."""
        return cast("PodShares", place(self._shape.request, usage, self._shape.quota))

    def _examine(self, name: str, standing: Standing) -> None:
        found = self._found(standing) if self._alike else self._placed(standing.usage)
        if isinstance(found, Unfit):
            self._misfits[name] = found
        else:
            self._fits[name] = preference(self._shape.request.policies.node, name, standing.total, found)

    def _found(self, standing: Standing) -> int | Unfit:
        if self._one_by_one is None or standing.kind.mig:
            state = standing.state
        else:
            state = (standing.kind, *self._one_by_one.answers(standing))
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
    """

    def __init__(self, request: GpuRequest, need: ContainerNeed) -> None:
        self._request = request
        self._need = replace(need, count=1)
        self._known: dict[tuple[int, ...], str] = {}

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
    """None for pods of several containers, under a quota that may refuse, on one NUMA node, or compared by links."""
    needs = [need for need in shape.request.needs if need is not None]
    if len(needs) > 1 or shape.quota is not None or shape.request.numa_bound or compares_connections(shape.request):
        return None
    return _OneByOne(shape.request, needs[0])
