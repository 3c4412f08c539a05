"""Limits of a namespace's pods on GPUs, GPU memory and cores, from its ResourceQuotas."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from proto.kubernetes.objects import ResourceQuota, ScopedResourceSelectorRequirement
from proto.quantity import QuantityError, integer_quantity
from scheduler_ext.cluster.accounting import NOTHING, Footprint, FootprintSums
from scheduler_ext.cluster.records import PodRecord, RecordState
from scheduler_ext.cluster.snapshot import Quota, quota_for
from scheduler_ext.quota_class import EXISTS, QuotaClass, Scope, ScopeError, are_in
from scheduler_ext.requests import RequestSettings


class Limits(NamedTuple):
    """The limits of one ResourceQuota, without use, and what of it cannot be read."""

    quota: Quota
    problems: tuple[str, ...] = ()


@dataclass(slots=True)
class Quotas:
    """The ResourceQuotas of all namespaces, and what pods hold there.

    GPUs are summed by class of pods, so a quota may change its scopes without a new count. Any thread may call
    `of` and `left`.
    """

    _settings: RequestSettings
    _limits: dict[str, dict[str, Limits]] = field(default_factory=dict)
    """The limits of each quota, by namespace and name."""
    _held: FootprintSums[QuotaClass] = field(default_factory=FootprintSums)

    def replace(self, quotas: Iterable[ResourceQuota]) -> None:
        limits: dict[str, dict[str, Limits]] = {}
        for quota in quotas:
            limits.setdefault(_namespace(quota), {})[quota.metadata.name] = read_limits(quota, self._settings)
        self._limits = limits

    def apply(self, quota: ResourceQuota) -> None:
        self._limits.setdefault(_namespace(quota), {})[quota.metadata.name] = read_limits(quota, self._settings)

    def remove(self, quota: ResourceQuota) -> None:
        limits = self._limits.get(_namespace(quota), {})
        limits.pop(quota.metadata.name, None)
        if not limits:
            self._limits.pop(_namespace(quota), None)

    def add(self, record: PodRecord) -> None:
        self._change(record, _charged(record))

    def subtract(self, record: PodRecord) -> None:
        self._change(record, NOTHING - _charged(record))

    def _change(self, record: PodRecord, more: Footprint) -> None:
        if more != NOTHING:
            self._held.change(record.namespace, record.quota_class, more)

    def of(self, namespace: str, gone: Iterable[PodRecord] = ()) -> tuple[Quota, ...]:
        """Returns the quotas of one namespace, as if these pods held nothing."""
        limits = self._limits.get(namespace)
        if not limits:
            return ()
        held = self._held.get(namespace, {}).copy()
        for record in gone:
            if record.namespace == namespace:
                held[record.quota_class] = held.get(record.quota_class, NOTHING) - _charged(record)
        return tuple(_in_use(each.quota, held) for each in limits.copy().values())

    def left(self, namespace: str, pods: QuotaClass) -> Quota | None:
        """Returns what the namespace's quotas leave to these pods, combined; None if no quota applies to them."""
        return quota_for(pods, self.of(namespace))

    def alone(self, namespace: str) -> "Quotas":
        """Returns a copy with the quotas and sums of this namespace only."""
        limits, held = self._limits.get(namespace, {}), self._held.get(namespace, {})
        return Quotas(self._settings, {namespace: limits.copy()}, FootprintSums({namespace: held.copy()}))

    def every(self, gone: Iterable[PodRecord] = ()) -> dict[str, tuple[Quota, ...]]:
        """Returns all quotas by namespace, as if these pods held nothing."""
        gone = tuple(gone)
        return {namespace: self.of(namespace, gone) for namespace in self._limits}

    def problems(self) -> dict[str, str]:
        """Returns for each unreadable quota, named `resourcequota ns/q`, what cannot be read."""
        return {
            f"resourcequota {namespace}/{name}": "; ".join(limits.problems)
            for namespace, by_name in self._limits.items()
            for name, limits in by_name.items()
            if limits.problems
        }


def _in_use(quota: Quota, held: Mapping[QuotaClass, Footprint]) -> Quota:
    """Returns the quota with its use. `held` is what the namespace's pods hold, by their class."""
    return replace(quota, used=sum((amount for pods, amount in held.items() if are_in(pods, quota.scopes)), NOTHING))


def _charged(record: PodRecord) -> Footprint:
    """Returns what the pod counts in its namespace's quotas: kept room counts for nodes alone."""
    return NOTHING if record.state is RecordState.KEPT else sum(record.gpus.footprints.values(), NOTHING)


def read_limits(quota: ResourceQuota, settings: RequestSettings) -> Limits:
    """Returns the limits. An unreadable one counts as 0, and an unreadable scope as one of all pods, so that no pod
    gets past it.

    `problems` names them.
    """
    problems: list[str] = []

    def limit(key: str) -> int | None:
        if key not in quota.spec.hard:
            return None
        try:
            return integer_quantity(quota.spec.hard[key])
        except QuantityError as error:
            problems.append(f"{key}: {error}; no pod is admitted until it is corrected")
            return 0

    memory, cores = limit(f"limits.{settings.names.memory}"), limit(f"limits.{settings.names.cores}")
    gpus = [found for word in ("limits", "requests") if (found := limit(f"{word}.{settings.names.count}")) is not None]
    scopes: list[Scope] = []
    for each in _scopes(quota):
        try:
            scopes.append(Scope(each.scope_name, each.operator, tuple(each.values)))
        except ScopeError as error:
            problems.append(f"{error}; until it is corrected the quota applies to pods in and out of this scope")
    memory_mib = None if memory is None else memory * settings.memory_factor
    quota_of = Quota(memory_mib=memory_mib, cores=cores, gpus=min(gpus, default=None), scopes=tuple(scopes))
    return Limits(quota_of, tuple(problems))


def _namespace(quota: ResourceQuota) -> str:
    return quota.metadata.namespace or "default"


def _scopes(quota: ResourceQuota) -> list[ScopedResourceSelectorRequirement]:
    named = [ScopedResourceSelectorRequirement(scope_name=name, operator=EXISTS) for name in quota.spec.scopes]
    selector = quota.spec.scope_selector
    return named if selector is None else [*named, *selector.match_expressions]
