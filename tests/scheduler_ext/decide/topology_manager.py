"""Kubelet's Topology Manager with its static CPU manager and device manager, by single CPUs and replicas.

Written from kubelet's own programs, apart from the extender's: it makes all hints and merges each permutation of them.
Source: pkg/kubelet/cm/topologymanager/policy*.go, cpumanager/policy_static.go and devicemanager/topology_hints.go of
Kubernetes 1.37.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product

from proto.annotations.node_numa import TopologyPolicy, TopologyScope

Hint = tuple[frozenset[int] | None, bool]


@dataclass(frozen=True)
class Asking:
    """One container: `lasts` is false for an init container that is no sidecar."""

    cpus: int
    replicas: int
    lasts: bool = True


@dataclass
class Pool:
    """CPUs or replicas with their NUMA nodes; None for a replica without one. `zones` are the NUMA nodes that kubelet
    looks at: for CPUs those that have some, for devices all of the machine.
    """

    zone: Mapping[str, int | None]
    available: set[str]
    zones: Sequence[int]
    reusable: set[str] = field(default_factory=set)

    def hints(self, request: int) -> list[Hint]:
        masks = [frozenset(each) for size in range(1, len(self.zones) + 1) for each in combinations(self.zones, size)]
        enough = [mask for mask in masks if sum(zone in mask for zone in self.zone.values()) >= request]
        least = min([len(self.zones), *map(len, enough)])
        reused = {self.zone[each] for each in self.reusable} - {None}
        matching = self.available | {each for each in self.reusable if self.zone[each] is not None}
        return [
            (mask, len(mask) == least)
            for mask in masks
            if reused <= mask and sum(self.zone[each] in mask for each in matching) >= request
        ]

    def allocate(self, request: int, mask: frozenset[int] | None, *, reused_first: bool, lasts: bool) -> None:
        def order(each: str) -> tuple[bool, bool, int, str]:
            zone = self.zone[each]
            apart = mask is not None and zone not in mask
            return reused_first and each not in self.reusable, apart, -1 if zone is None else zone, each

        given = set(sorted(self.available | self.reusable, key=order)[:request])
        self.available -= given
        self.reusable = self.reusable - given if lasts else self.reusable | given


@dataclass
class TopologyManager:
    policy: TopologyPolicy
    scope: TopologyScope
    cpus: Pool
    replicas: Pool

    def admits(self, containers: Sequence[Asking]) -> Sequence[Hint] | None:
        """The places of the containers; None for a pod that is refused."""
        found = []
        whole = self._best(
            _peak([(each.cpus, each.lasts) for each in containers]),
            _peak([(each.replicas, each.lasts) for each in containers]),
        )
        for each in containers:
            found.append(whole if self.scope is TopologyScope.POD else self._best(each.cpus, each.replicas))
            mask, preferred = found[-1]
            if not preferred and self.policy.refuses:
                return None
            if each.cpus:
                self.cpus.allocate(each.cpus, mask, reused_first=False, lasts=each.lasts)
            if each.replicas:
                self.replicas.allocate(each.replicas, mask, reused_first=True, lasts=each.lasts)
        return found

    def _best(self, cpus: int, replicas: int) -> Hint:
        aligns = any(zone is not None for zone in self.replicas.zone.values())
        hints = [
            self.cpus.hints(cpus) or [(None, False)] if cpus else [(None, True)],
            self.replicas.hints(replicas) or [(None, False)] if replicas and aligns else [(None, True)],
        ]
        if self.policy is TopologyPolicy.SINGLE_NUMA_NODE:
            hints = [[hint for hint in each if hint[1] and (hint[0] is None or len(hint[0]) == 1)] for each in hints]
        merged = [hint for each in product(*hints) if (hint := self._merged(each))[0]]
        return min(merged, key=_rank, default=(frozenset(self.replicas.zones), False))

    def _merged(self, permutation: Sequence[Hint]) -> Hint:
        own = [mask for mask, _ in permutation if mask is not None]
        mask = frozenset(self.replicas.zones)
        for each in own:
            mask &= each
        return mask, all(preferred for _, preferred in permutation) and all(each == own[0] for each in own)


def _rank(hint: Hint) -> tuple[bool, int, int]:
    mask = hint[0] or frozenset()
    return not hint[1], len(mask), sum(1 << zone for zone in mask)


def _peak(amounts: Sequence[tuple[int, bool]]) -> int:
    beside = sum(amount for amount, lasts in amounts if lasts)
    before = [amount + sum(each for each, lasts in amounts[:at] if lasts) for at, (amount, _) in enumerate(amounts)]
    return max(beside, *before)
