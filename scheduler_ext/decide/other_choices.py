"""Finds GPUs for a pod whose containers do not fit one after another: one may have taken what a later one needs.

Whether a GPU serves some of the pod's containers depends on that GPU alone. So the search gives each container GPUs,
the one with the fewest alternatives first, and takes a choice back where a container is left without enough of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from msgspec.structs import replace as with_fields

from proto.devices import MIG_MODE, ContainerShares, DeviceShare, DeviceUUID, PodShares
from scheduler_ext.cluster.snapshot import GpuUsage, Quota
from scheduler_ext.decide.fit import MIG_EFFORT, Rules, cards_of, fit, share_of, why_not, within_quota
from scheduler_ext.decide.misfit import Misfit
from scheduler_ext.decide.score import sort_gpus
from scheduler_ext.requests import ContainerKind, GpuRequest

MOST_STEPS = 1_000
"""Steps of one search: one for each verdict on a container and a GPU, one more for each share that is tried for it, or
`MIG_EFFORT` on a GPU in MIG mode. Together they take about two milliseconds.
"""


class _Filled(NamedTuple):
    """A GPU with the shares of some of the pod's containers, in the order in which they are placed."""

    gpu: GpuUsage
    positions: tuple[int, ...] = ()
    """The containers, ascending. A GPU in MIG mode may serve one of them repeatedly."""
    shares: ContainerShares = ()


def other_choice(
    request: GpuRequest, gpus: Sequence[GpuUsage], rules: Rules, quota: Quota | None, failed: int
) -> PodShares | None:
    """Returns shares for every container that fit together; None without any. `failed` is the position of the first
    container that did not fit behind the ones before it.

    The search goes through all the choices that differ in more than which of several equal GPUs is taken, as long as it
    takes at most `MOST_STEPS`. The first ones follow the pod's policy as far as the search's order permits.
    """
    search = _ChoiceSearch(request, gpus, rules)
    try:
        if not search.is_hopeful(failed, quota):
            return None
        return next((shares for shares in search.choices() if _is_covered(request, shares, quota)), None)
    finally:
        rules.effort.made += search.steps


def _is_covered(request: GpuRequest, shares: PodShares, quota: Quota | None) -> bool:
    for kind, container in zip(request.kinds, shares, strict=True):
        if not within_quota(container, quota):
            return False
        if quota is not None and kind is not ContainerKind.INIT:
            quota = quota.charged(container)
    return True


class _ChoiceSearch:
    """The search on one node."""

    def __init__(self, request: GpuRequest, gpus: Sequence[GpuUsage], rules: Rules) -> None:
        self.steps = 0
        self._request = request
        self._rules = rules
        self._gpus = cards_of(gpus)
        self._places = range(len(self._gpus))
        self._place_of = {gpu.device.uuid: place for place, gpu in enumerate(self._gpus)}
        self._needs = {position: need for position, need in enumerate(request.needs) if need is not None}
        self._filled = [_Filled(gpu) for gpu in self._gpus]
        self._known: dict[tuple[int, tuple[int, ...]], _Filled | None] = {}
        self._kinds: Sequence[int] = ()
        self._picks: Sequence[int] = ()
        """The container of each pick, in the order of the search. A container picks as many GPUs as it requests."""
        self._picked: list[int] = []
        """The GPU of each pick so far."""
        self._orders: dict[int, Sequence[int]] = {}

    def is_hopeful(self, failed: int, quota: Quota | None) -> bool:
        """Returns whether each container fits alone, and the quota covers all of them. Those before the failed one do
        fit.
        """
        later = [position for position in self._needs if position >= failed]
        if len(self._gpus) * len(self._needs) > MOST_STEPS or not all(map(self._has_enough, later)):
            return False
        return quota is None or within_quota(tuple(self._least_shares()), quota)

    def choices(self) -> Iterator[PodShares]:
        serving = {position: self._serving(position) for position in self._needs}
        self._kinds = self._numbered(serving)
        ranked = sorted(self._needs, key=lambda position: self._slack(position, serving[position]))
        self._picks = [position for position in ranked for _ in range(self._needs[position].count)]
        yield from self._choices()

    def _choices(self) -> Iterator[PodShares]:
        """Yields the choices that go on from the picks so far."""
        position, tries = self._picks[len(self._picked)], self._tries()
        while self.steps <= MOST_STEPS and (place := next(tries, None)) is not None:
            before, filled = self._filled[place], self._with(place, position)
            if filled is None:
                continue
            self._picked.append(place)
            self._filled[place] = filled
            if len(self._picked) == len(self._picks):
                yield self._shares()
            elif self._leaves_enough():
                yield from self._choices()
            self._filled[place] = before
            self._picked.pop()

    def _shares(self) -> PodShares:
        found: list[list[DeviceShare]] = [[] for _ in self._request.needs]
        for gpu in self._filled:
            for position, share in zip(gpu.positions, gpu.shares, strict=True):
                found[position].append(share)
        return tuple(map(tuple, found))

    def _least_shares(self) -> Iterator[DeviceShare]:
        """Yields shares as small as any that the containers that last can get."""
        for position, need in self._needs.items():
            if self._request.kinds[position] is not ContainerKind.INIT:
                shares = [share_of(self._gpus[place], need) for place in self._serving(position)]
                memory_mib, cores = min(each.memory_mib for each in shares), min(each.cores for each in shares)
                yield from [DeviceShare(uuid=shares[0].uuid, memory_mib=memory_mib, cores=cores)] * need.count

    def _numbered(self, serving: Mapping[int, Sequence[int]]) -> Sequence[int]:
        """Returns a number for each GPU. Those with equal numbers are equally good for every container."""
        numbers: dict[object, int] = {}
        self._rules.effort.made += len(self._gpus)
        for place, gpu in enumerate(self._gpus):
            numa = gpu.device.numa if self._request.numa_bound else 0
            alike = with_fields(gpu, device=replace(gpu.device, uuid=DeviceUUID(""), index=0, numa=numa))
            serves = tuple([place in places for places in serving.values()])
            numbers[place] = numbers.setdefault((alike, serves), place)
        return [numbers[place] for place in self._places]

    def _slack(self, position: int, serving: Sequence[int]) -> tuple[int, int, int]:
        """Returns a key for sorting containers: the hardest to place has the least. That is the one with the fewest
        alternatives; of equal ones the one that needs most.
        """
        need = self._needs[position]
        most_mib = max(need.reserved_mib(self._gpus[place].device.memory_mib) for place in serving)
        return len(serving) - need.count, -most_mib, -need.reserved_cores

    def _tries(self) -> Iterator[int]:
        """Yields the GPUs for the next pick; of equal ones only the first. A container picks GPUs in a fixed order, so
        that no choice of them is tried twice.
        """
        made = len(self._picked)
        position = self._picks[made]
        if made and self._picks[made - 1] == position:
            order = self._after(self._picked[-1], self._orders[position])
        else:
            order = self._orders[position] = self._visited(position)
        tried = set()
        for place in order:
            kind = self._kinds[place], self._filled[place].positions
            if kind not in tried:
                tried.add(kind)
                if self._with(place, position) is not None:
                    yield place

    def _after(self, last: int, order: Sequence[int]) -> Sequence[int]:
        """Returns the GPUs that a container may have in addition to the one that it picked last."""
        device = self._gpus[last].device
        left = order[order.index(last) + (device.mode != MIG_MODE) :]
        if not self._request.numa_bound:
            return left
        return [place for place in left if self._gpus[place].device.numa == device.numa]

    def _visited(self, position: int) -> Sequence[int]:
        """Returns the GPUs as the policy prefers them now. Those that are linked best come first, at the container's
        first turn only: to choose them takes longer than all the rest.
        """
        need, policy = self._needs[position], self._rules.policy
        self._rules.effort.made += len(self._gpus) * (1 + len(policy.keys)) // 4
        gpus = [filled.gpu for filled in self._filled]
        sort_gpus(gpus, need, self._request)
        gpus.reverse()
        if position not in self._orders and (policy.topology_aware or (policy.packs and need.count > 1)):
            linked = fit(need, gpus, self._rules, None)
            if not isinstance(linked, Misfit):
                first = {share.uuid for share in linked}
                gpus.sort(key=lambda gpu: gpu.device.uuid not in first)
        return [self._place_of[gpu.device.uuid] for gpu in gpus]

    def _leaves_enough(self) -> bool:
        """Returns whether every container that has no GPU yet still finds enough."""
        made = len(self._picked)
        waiting = dict.fromkeys(self._picks[made:])
        waiting.pop(self._picks[made - 1], None)
        return all(map(self._has_enough, waiting))

    def _has_enough(self, position: int) -> bool:
        left = self._needs[position].count
        for place, gpu in enumerate(self._gpus):
            if self._with(place, position) is not None:
                left -= 1
                if not left or gpu.device.mode == MIG_MODE:
                    return True
        return False

    def _serving(self, position: int) -> Sequence[int]:
        return [place for place in self._places if self._with(place, position) is not None]

    def _with(self, place: int, position: int) -> _Filled | None:
        """Returns the GPU with this container beside those that have it; None if that is too much."""
        self.steps += 1
        positions = tuple(sorted((*self._filled[place].positions, position)))
        key = place, positions
        if key not in self._known:
            self._known[key] = self._placed(self._gpus[place], positions)
        return self._known[key]

    def _placed(self, gpu: GpuUsage, positions: tuple[int, ...]) -> _Filled | None:
        shares: list[DeviceShare] = []
        for position in positions:
            self.steps += MIG_EFFORT if gpu.device.mode == MIG_MODE else 1
            need = self._needs[position]
            if why_not(gpu, need, self._rules, None) is not None:
                return None
            shares.append(share_of(gpu, need))
            lasts = self._request.kinds[position] is not ContainerKind.INIT
            gpu = gpu.plus(shares[-1]) if lasts else gpu.occupied(shares[-1].instance)
        return _Filled(gpu, positions, tuple(shares))
