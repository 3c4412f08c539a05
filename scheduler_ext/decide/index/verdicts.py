"""Judges whether and how well pods of one shape fit on a node, without choosing GPUs where possible.

A GPU's verdict on a container depends on that GPU alone, unless earlier containers use it too. Where those cannot
change any verdict on a node, the verdicts decide everything: whether the pod fits, which reasons it gets, and how well
the best GPUs are connected. Nodes whose GPUs have the same verdicts are judged once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

from scheduler_ext.cluster.accounting import NOTHING, Footprint
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage, Quota
from scheduler_ext.decide.alignment import aligns
from scheduler_ext.decide.effort import Effort, make_room
from scheduler_ext.decide.fit import Rules, cards_of, share_of, why_not
from scheduler_ext.decide.index.node_states import NodeState
from scheduler_ext.decide.misfit import Misfit, NodeRefusal, node_refusal_of
from scheduler_ext.decide.place import place
from scheduler_ext.decide.reasons import Reason
from scheduler_ext.decide.score import compares_connections, connected
from scheduler_ext.decide.topology import best_connected, is_exact, pair_matrix
from scheduler_ext.policies import SortKey
from scheduler_ext.requests import ContainerKind, ContainerNeed, GpuRequest

MOST_KNOWN = 4_000
"""Entries remembered in each cache of a shape."""
LEAST_KNOWN = 500
KNOWN_A_NODE = 4
"""Entries per node of the cluster, up to `MOST_KNOWN`. 32 shapes are remembered, and the nodes of a small cluster are
judged quickly.
"""
EFFORT_OF_A_NODE = 8
"""Effort for choosing GPUs on a node, in addition to what the containers take."""
UNBOUNDED = 1 << 62
"""More than any connection."""

NodeVerdict = int | NodeRefusal
"""The connection between the pod's GPUs (0 where links are not compared), or why the pod does not fit."""

_asked = attrgetter("needs", "kinds", "policies", "filter", "numa_bound", "host", "cpus")
"""The fields of a request by which pods of one shape are alike: all that do not name its owner."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PodShape:
    """The common part of pods that request the same of every node: their request, and what their quota leaves.

    `request` is that of any pod of the shape.
    """

    request: GpuRequest
    quota: Quota | None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PodShape):
            return NotImplemented
        return self.quota == other.quota and _asked(self.request) == _asked(other.request)

    def __hash__(self) -> int:
        """Returns a hash of the fields that nearly always differ: hashing a whole request costs more than comparing
        two.
        """
        return hash(self.request.needs)

    @property
    def named(self) -> frozenset[str]:
        """Returns the GPUs that the pod names: a node that has one of them is like no other node."""
        return self.request.filter.refused_uuids | (self.request.filter.uuids or frozenset())


class ShapeJudge:
    """Judges nodes for one shape. `largest_mib` is the memory of the largest GPU, `nodes` the number of nodes."""

    def __init__(self, shape: PodShape, largest_mib: int, nodes: int) -> None:
        self._shape = shape
        self._named = shape.named
        self._compares = compares_connections(shape.request)
        self.effort = Effort()
        self._most_known = min(LEAST_KNOWN + KNOWN_A_NODE * nodes, MOST_KNOWN)
        self._containers = _Containers(shape, largest_mib, self._most_known, self.effort)
        self._by_state: dict[int, NodeVerdict] = {}
        self._best_connection: dict[int, int] = {}
        """The best connection of pods of the shape, by layout."""

    def best_connection(self, state: NodeState) -> int:
        """Returns an upper bound: no choice of GPUs on a node of this layout is better connected."""
        if not self._compares:
            return 0
        layout = state.model.layout
        best = self._best_connection.get(layout)
        if best is None:
            make_room(self._best_connection, self._most_known)
            best = self._best_connection[layout] = self._on_empty_node(state)
        return best

    def judge(self, state: NodeState) -> NodeVerdict:
        self.effort.made += 1
        if self._named and any(gpu.device.uuid in self._named for gpu in state.usage.gpus):
            return self._placed(state.usage)
        found = self._by_state.get(state.number)
        if found is None:
            self.effort.made += 1
            is_plain = not state.model.mig and not (state.usage.free_cpus and aligns(self._shape.request, state.usage))
            found = self._by_verdicts(state) if is_plain else None
            if found is None:
                found = self._placed(state.usage)
            make_room(self._by_state, self._most_known)
            self._by_state[state.number] = found
        return found

    def _by_verdicts(self, state: NodeState) -> NodeVerdict | None:
        """Returns what the verdicts of the GPUs decide; None if the GPUs have to be chosen."""
        containers = self._containers
        verdicts = containers.verdicts(state)
        key = (state.model.layout, *verdicts) if containers.layout_matters else verdicts
        try:
            return containers.known[key]
        except KeyError:
            self.effort.made += 1 + sum(len(each.by_container) for each in verdicts) // 8
            found: NodeVerdict | None = None
            if containers.decide_all(verdicts, mutual=state.model.mutual):
                found = self._placed(state.usage)
            elif not self._compares and containers.fit_surely(verdicts):
                found = 0
            make_room(containers.known, self._most_known)
            containers.known[key] = found
            return found

    def _placed(self, usage: NodeUsage) -> NodeVerdict:
        self.effort.made += EFFORT_OF_A_NODE
        shares = place(self._shape.request, usage, self._shape.quota, self.effort)
        if isinstance(shares, Misfit):
            return node_refusal_of(shares)
        return connected(shares, usage.node.pair_scores) if self._compares else 0

    def _on_empty_node(self, state: NodeState) -> int:
        model, devices = state.model, state.usage.node.devices
        counts = [need.count for need in self._shape.request.needs if need is not None]
        if model.mig or not model.mutual or not all(is_exact(len(devices), count) for count in counts):
            return UNBOUNDED
        matrix = pair_matrix(state.usage.node.pair_scores, [device.uuid for device in devices])
        total = 0
        for count in counts:
            chosen = best_connected(matrix, count, weigh_remainder=False) if count <= len(devices) else ()
            total += sum(matrix[a][b] or 0 for n, a in enumerate(chosen or ()) for b in (chosen or ())[n + 1 :])
        return total


class _ContainerVerdict(NamedTuple):
    """One GPU's verdict on one container: a reason why it does not serve, or None.

    `now` is the verdict on the GPU as it is; `then` after a share for each earlier container that may use it. A GPU
    that failed a check never passes it after more of it is taken. So if both verdicts are the same, that verdict holds
    in every case.
    """

    now: Reason | None
    then: Reason | None
    too_small: bool


@dataclass(frozen=True, slots=True, eq=False)
class _GpuVerdicts:
    """One GPU's verdict on each container that requests GPUs; empty for a GPU that is not NVIDIA's.

    Equal verdicts are one object, which is compared and hashed by its identity: comparing their reasons takes longer.
    """

    by_container: tuple[_ContainerVerdict, ...]


class _Containers:
    """The pod's containers, and the verdicts of GPUs on them."""

    def __init__(self, shape: PodShape, largest_mib: int, most_known: int, effort: Effort) -> None:
        self._request = request = shape.request
        self._steps = tuple(_steps(request, shape.quota, largest_mib))
        counts = [step.need.count for step in self._steps]
        numa = request.numa_bound and max(counts) > 1
        compares = compares_connections(request)
        self.layout_matters = compares or numa
        self._counts = counts if compares else []
        keys = request.policies.gpu.bound_keys
        scattered = numa and keys[0] not in (SortKey.NUMA, SortKey.NUMA_DESCENDING)
        moves = compares and not all(step.lasts for step in self._steps)
        self._depends_on_choice = scattered or moves
        """True if the result always depends on which GPUs are chosen."""
        self._can_be_counted = not numa
        self._effort = effort
        self._most_known = most_known
        self.known: dict[tuple[object, ...], NodeVerdict | None] = {}
        """The results by the GPUs' verdicts; None where the verdicts do not decide."""
        self._of_gpu: dict[int, _GpuVerdicts] = {}
        """The verdicts by the GPU's number in a node's state."""
        self._same: dict[tuple[_ContainerVerdict, ...], _GpuVerdicts] = {}

    def verdicts(self, state: NodeState) -> tuple[_GpuVerdicts, ...]:
        try:
            return tuple([self._of_gpu[gpu] for gpu in state.gpus])
        except KeyError:
            self._read(state)
            return tuple([self._of_gpu[gpu] for gpu in state.gpus])

    def decide_all(self, verdicts: Sequence[_GpuVerdicts], *, mutual: bool) -> bool:
        """Returns whether the verdicts alone decide whether the pod fits, and how well. `mutual` is the node
        model's.
        """
        if self._depends_on_choice or any(one.now is not one.then for each in verdicts for one in each.by_container):
            return False
        return not self._counts or (mutual and all(is_exact(len(verdicts), count) for count in self._counts))

    def fit_surely(self, verdicts: Sequence[_GpuVerdicts]) -> bool:
        """Returns whether the pod fits whichever GPUs are chosen: earlier containers use up no more GPUs than they
        request.
        """
        if not self._can_be_counted:
            return False
        for position, step in enumerate(self._steps):
            on_step = [each.by_container[position] for each in verdicts if each.by_container]
            always = sum(one.then is None for one in on_step)
            left = sum(one.now is None for one in on_step) - step.before if step.quota is None else 0
            if max(always, left) < step.need.count:
                return False
        return True

    def _read(self, state: NodeState) -> None:
        node = state.usage.node
        if len(self._of_gpu) >= self._most_known:
            self._of_gpu.clear()
            self._same.clear()
        request = self._request
        rules = Rules(node=node, filter=request.filter, policy=request.policies.gpu, numa_bound=request.numa_bound)
        for number, gpu in zip(state.gpus, state.usage.gpus, strict=True):
            if number not in self._of_gpu:
                found = self._verdicts_of(gpu, rules)
                self._of_gpu[number] = self._same.setdefault(found, _GpuVerdicts(found))

    def _verdicts_of(self, gpu: GpuUsage, rules: Rules) -> tuple[_ContainerVerdict, ...]:
        if not cards_of([gpu]):
            return ()
        found, then = [], gpu
        for step in self._steps:
            found.append(step.verdict(gpu, then, rules))
            if step.lasts and len(self._steps) > 1:
                then = then.plus(share_of(gpu, step.need))
        self._effort.made += 2 * len(found)
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One container that requests GPUs, in the order of placement.

    `lasts` is False if the container ends before the next one starts. Earlier containers that last request `before`
    GPUs. `quota_then` is the least that they and the container's own other shares leave of `quota`.
    """

    need: ContainerNeed
    lasts: bool
    before: int
    quota: Quota | None
    quota_then: Quota | None

    def verdict(self, gpu: GpuUsage, then: GpuUsage, rules: Rules) -> _ContainerVerdict:
        """Returns the GPU's verdict. `then` is the GPU with a share of each earlier container that lasts."""
        need = self.need
        first = last = why_not(gpu, need, rules, self.quota)
        if then is not gpu or self.quota_then is not self.quota:
            last = why_not(then, need, rules, self.quota_then)
        return _ContainerVerdict(first, last, need.is_beyond(gpu.device))


def _steps(request: GpuRequest, quota: Quota | None, largest_mib: int) -> Iterator[_Step]:
    before, charged = 0, NOTHING
    for need, kind in zip(request.needs, request.kinds, strict=True):
        if need is None:
            continue
        quota_then = None
        if quota is not None:
            quota_then = replace(quota, used=quota.used + charged + _most_of(need, need.count - 1, largest_mib))
        lasts = kind is not ContainerKind.INIT
        yield _Step(need=need, lasts=lasts, before=before, quota=quota, quota_then=quota_then)
        if lasts:
            before += need.count
            charged += _most_of(need, need.count, largest_mib)


def _most_of(need: ContainerNeed, count: int, largest_mib: int) -> Footprint:
    """Returns the amount of `count` shares for the container, on the largest GPUs."""
    return Footprint(count, count * need.reserved_mib(largest_mib), count * need.reserved_cores)
