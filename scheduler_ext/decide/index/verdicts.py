"""Judges whether and how well pods of one shape fit on a node, without choosing GPUs where possible.

A GPU's verdict on a container depends on that GPU alone, unless earlier containers use it too. Where those cannot
change any verdict on a node, the verdicts tell everything: whether the pod fits, which reasons it gets, and how well
the best GPUs are connected. Nodes whose GPUs have the same verdicts are judged once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from proto.devices import VENDOR, Device, DeviceShare
from scheduler_ext.cluster.accounting import NOTHING, Footprint
from scheduler_ext.cluster.registered import RegisteredNode
from scheduler_ext.cluster.snapshot import GpuUsage, NodeUsage, Quota
from scheduler_ext.decide.best_subset import is_exact
from scheduler_ext.decide.decision import place
from scheduler_ext.decide.effort import Effort
from scheduler_ext.decide.fit import Rules, why_not
from scheduler_ext.decide.index.node_states import Kind, Standing
from scheduler_ext.decide.misfit import Misfit, Reason
from scheduler_ext.decide.preference import compares_connections, connected
from scheduler_ext.decide.shared_ids import with_shared_slots
from scheduler_ext.decide.topology import best_connected, pair_matrix
from scheduler_ext.decide.unresolvable import Unfit, unfit_of
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

Found = int | Unfit
"""The connection between the pod's GPUs (0 where links are not compared), or why the pod does not fit."""


class Word(NamedTuple):
    """One GPU's verdict on one container: a reason why it does not serve, or None.

    `now` is the verdict on the GPU as it is; `then` after a share for each earlier container that may use it. A GPU
    that failed a check never passes it after more of it is taken. So if both verdicts are the same, that verdict holds
    in every case.
    """

    now: Reason | None
    then: Reason | None
    too_small: bool


Words = tuple[Word, ...]
"""One GPU's verdict on each container that asks for GPUs. Empty for a GPU that is not NVIDIA's."""


class Judge:
    """Judges nodes for one shape. `largest_mib` is the memory of the largest GPU, `nodes` the number of nodes."""

    def __init__(self, request: GpuRequest, quota: Quota | None, largest_mib: int, nodes: int) -> None:
        self._request = request
        self._quota = quota
        filters = request.filter
        self._named = filters.refused_uuids | (filters.uuids or frozenset())
        self._compares = compares_connections(request)
        self.effort = Effort()
        self._most_known = min(LEAST_KNOWN + KNOWN_A_NODE * nodes, MOST_KNOWN)
        seen = request, quota, largest_mib, self._most_known, self.effort
        self._views = {slots: _View(*seen, slots=slots) for slots in (False, True)}
        self._by_state: dict[int, Found] = {}
        self._most: dict[int, int] = {}

    def most(self, standing: Standing) -> int:
        """An upper bound: no choice of GPUs on a node of this layout is better connected."""
        if not self._compares:
            return 0
        layout = standing.kind.layout
        most = self._most.get(layout)
        if most is None:
            self._make_room(self._most)
            most = self._most[layout] = self._best_empty(standing)
        return most

    def judge(self, standing: Standing) -> Found:
        self.effort.made += 1
        if self._named and any(gpu.device.uuid in self._named for gpu in standing.usage.gpus):
            return self._placed(standing.usage)
        found = self._by_state.get(standing.state)
        if found is None:
            self.effort.made += 1
            found = None if standing.kind.mig else self._by_the_words(standing)
            if found is None:
                found = self._placed(standing.usage)
            self._make_room(self._by_state)
            self._by_state[standing.state] = found
        return found

    def _by_the_words(self, standing: Standing) -> Found | None:
        view = self._views[standing.kind.slots]
        said = view.numbers(standing)
        key = (standing.kind.layout, *said) if view.layout_matters else said
        try:
            return view.known[key]
        except KeyError:
            self._make_room(view.known)
            found = view.known[key] = self._told(standing, view, view.words(said))
            return found

    def _told(self, standing: Standing, view: "_View", words: Sequence[Words]) -> Found | None:
        self.effort.made += 1 + sum(map(len, words)) // 8
        if view.tells_all(standing.kind, words):
            return self._placed(standing.usage)
        return 0 if not self._compares and view.fits_surely(words) else None

    def _placed(self, usage: NodeUsage) -> Found:
        self.effort.made += EFFORT_OF_A_NODE
        shares = place(self._request, usage, self._quota, self.effort)
        if isinstance(shares, Misfit):
            return unfit_of(shares)
        return connected(shares, usage.node.pair_scores) if self._compares else 0

    def _make_room(self, known: dict[Any, Any]) -> None:
        if len(known) >= self._most_known:
            known.clear()

    def _best_empty(self, standing: Standing) -> int:
        kind, devices = standing.kind, standing.usage.node.devices
        counts = [need.count for need in self._request.needs if need is not None]
        if kind.mig or not kind.mutual or not all(is_exact(len(devices), count) for count in counts):
            return UNBOUNDED
        matrix = pair_matrix(standing.usage.node.pair_scores, [device.uuid for device in devices])
        total = 0
        for count in counts:
            chosen = best_connected(matrix, count, weigh_remainder=False) if count <= len(devices) else ()
            total += sum(matrix[a][b] or 0 for n, a in enumerate(chosen or ()) for b in (chosen or ())[n + 1 :])
        return total


class _View:
    """The pod's containers as nodes with slots, or without, see them; and the verdicts of GPUs on them."""

    def __init__(
        self,
        request: GpuRequest,
        quota: Quota | None,
        largest_mib: int,
        most_known: int,
        effort: Effort,
        *,
        slots: bool,
    ) -> None:
        inherits = False
        if slots and ContainerKind.INIT in request.kinds:
            request, sharing = with_shared_slots(request)
            # Whether such a container fits depends on the GPUs that the container before it got.
            inherits = any(heir < position for position, heir in sharing.items())
        self._request = request
        self._steps = tuple(_steps(request, quota, largest_mib))
        counts = [step.need.count for step in self._steps]
        self._numa = request.numa_bound and max(counts) > 1
        compares = compares_connections(request)
        self.layout_matters = compares or self._numa
        self._counts = counts if compares else []
        keys = request.policies.gpu.bound_keys
        scattered = self._numa and keys[0] not in (SortKey.NUMA, SortKey.NUMA_DESCENDING)
        moves = compares and not all(step.lasts for step in self._steps)
        self._clueless = inherits or scattered or moves
        """Whether the result always depends on which GPUs are chosen."""
        self._guesses = not (inherits or self._numa)
        self._effort = effort
        self._most_known = most_known
        self.known: dict[tuple[int, ...], Found | None] = {}
        """What was found, by the numbers of the GPUs' verdicts; None where the verdicts do not decide."""
        self._numbers: dict[int, int] = {}
        """The number of each verdict, by the GPU's number in a standing."""
        self._number_of: dict[Words, int] = {}
        self._words: dict[int, Words] = {}
        self._last = 0

    def numbers(self, standing: Standing) -> tuple[int, ...]:
        """Returns for each GPU the number of its verdicts."""
        try:
            return tuple([self._numbers[gpu] for gpu in standing.gpus])
        except KeyError:
            return self._heard(standing)

    def words(self, numbers: Sequence[int]) -> list[Words]:
        return [self._words[number] for number in numbers]

    def tells_all(self, kind: Kind, words: Sequence[Words]) -> bool:
        """Whether the verdicts alone decide whether the pod fits, and how well."""
        if self._clueless or any(word.now is not word.then for each in words for word in each):
            return False
        return not self._counts or (kind.mutual and all(is_exact(len(words), count) for count in self._counts))

    def fits_surely(self, words: Sequence[Words]) -> bool:
        """Whether the pod fits whichever GPUs are chosen: earlier containers use up no more GPUs than they ask for."""
        if not self._guesses:
            return False
        for position, step in enumerate(self._steps):
            said = [each[position] for each in words if each]
            always = sum(word.then is None for word in said)
            left = sum(word.now is None for word in said) - step.before if step.quota is None else 0
            if max(always, left) < step.need.count:
                return False
        return True

    def _heard(self, standing: Standing) -> tuple[int, ...]:
        node, numbers = standing.usage.node, self._numbers
        if len(numbers) >= self._most_known:
            for known in (numbers, self._number_of, self._words):
                known.clear()
        rules = self._rules(node)
        for number, gpu in zip(standing.gpus, standing.usage.gpus, strict=True):
            if number not in numbers:
                numbers[number] = self._numbered(self._ask(gpu, rules))
        return tuple([numbers[number] for number in standing.gpus])

    def _numbered(self, words: Words) -> int:
        """A number is never used again for other verdicts."""
        number = self._number_of.get(words)
        if number is None:
            self._last = number = self._last + 1
            self._number_of[words], self._words[number] = number, words
        return number

    def _rules(self, node: RegisteredNode) -> Rules:
        request = self._request
        return Rules(node=node, filter=request.filter, policy=request.policies.gpu, numa_bound=request.numa_bound)

    def _ask(self, gpu: GpuUsage, rules: Rules) -> Words:
        if VENDOR not in gpu.device.type and VENDOR.lower() not in gpu.device.type.lower():
            return ()
        words, then = [], gpu
        for step in self._steps:
            words.append(step.ask(gpu, then, rules))
            if step.lasts and len(self._steps) > 1:
                then = then.plus(step.share(gpu.device))
        self._effort.made += 2 * len(words)
        return tuple(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One container that asks for GPUs, in the order of placement.

    `lasts` is False if the container ends before the next one starts. Earlier containers that last ask for `before`
    GPUs. `quota_then` is the least that they and the container's own other shares leave of `quota`.
    """

    need: ContainerNeed
    lasts: bool
    before: int
    quota: Quota | None
    quota_then: Quota | None

    def share(self, device: Device) -> DeviceShare:
        """The share of a GPU that is not in MIG mode."""
        need = self.need
        memory_mib = need.reserved_mib(device.memory_mib)
        return DeviceShare(uuid=device.uuid, memory_mib=memory_mib, cores=need.reserved_cores)

    def ask(self, gpu: GpuUsage, then: GpuUsage, rules: Rules) -> Word:
        """`then` is the GPU with a share of each earlier container that lasts."""
        need, device = self.need, gpu.device
        first = last = why_not(gpu, need, rules, self.quota)
        if then is not gpu or self.quota_then is not self.quota:
            last = why_not(then, need, rules, self.quota_then)
        too_small = need.reserved_mib(device.memory_mib) > device.memory_mib or need.reserved_cores > device.cores
        return Word(first, last, too_small)


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
    """`count` shares for the container, on the largest GPUs."""
    return Footprint(count, count * need.reserved_mib(largest_mib), count * need.reserved_cores)
