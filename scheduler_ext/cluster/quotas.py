"""Limits of a namespace's pods on GPUs, GPU memory and cores, from its ResourceQuotas."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from proto.kubernetes.objects import ResourceQuota, ScopedResourceSelectorRequirement
from proto.quantity import QuantityError, integer_quantity
from scheduler_ext.cluster.accounting import NOTHING, Footprint, total
from scheduler_ext.cluster.holdings import Holding
from scheduler_ext.cluster.snapshot import Quota
from scheduler_ext.quota_class import EXISTS, QuotaClass, Scope, ScopeError, are_in
from scheduler_ext.requests import RequestSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one ResourceQuota. None does not limit; `scopes` are those of a `Quota`."""

    memory_mib: int | None = None
    cores: int | None = None
    gpus: int | None = None
    scopes: tuple[Scope, ...] = ()
    problems: tuple[str, ...] = ()

    def quota(self, held: Mapping[QuotaClass, Footprint]) -> Quota:
        """Returns the quota with its use. `held` is what the namespace's pods hold, by their class."""
        used = total(amount for pods, amount in held.items() if are_in(pods, self.scopes))
        return Quota(memory_mib=self.memory_mib, cores=self.cores, gpus=self.gpus, used=used, scopes=self.scopes)


@dataclass(slots=True)
class Quotas:
    """The ResourceQuotas of all namespaces, and what pods hold there.

    Holdings are summed by class of pods, so a quota may change its scopes without a new count. Any thread may call
    `of`.
    """

    _settings: RequestSettings
    _limits: dict[str, dict[str, Limits]] = field(default_factory=dict)
    """The limits of each quota, by namespace and name."""
    _held: dict[str, dict[QuotaClass, Footprint]] = field(default_factory=dict)

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

    def charge(self, holding: Holding) -> None:
        self._change(holding, total(holding.footprints.values()))

    def release(self, holding: Holding) -> None:
        self._change(holding, NOTHING - total(holding.footprints.values()))

    def _change(self, holding: Holding, more: Footprint) -> None:
        """Changes the sum of the holding's class. Nothing stays of namespaces and classes without holdings: most names
        never come back.
        """
        held = self._held.setdefault(holding.namespace, {})
        now = held.get(holding.quota_class, NOTHING) + more
        if now != NOTHING:
            held[holding.quota_class] = now
            return
        held.pop(holding.quota_class, None)
        if not held:
            del self._held[holding.namespace]

    def of(self, namespace: str, gone: Iterable[Holding] = ()) -> tuple[Quota, ...]:
        """Returns the quotas of one namespace, as if these pods held nothing."""
        limits = self._limits.get(namespace)
        if not limits:
            return ()
        held = self._held.get(namespace, {}).copy()
        for holding in gone:
            if holding.namespace == namespace:
                left = held.get(holding.quota_class, NOTHING) - total(holding.footprints.values())
                held[holding.quota_class] = left
        return tuple(each.quota(held) for each in limits.copy().values())

    def alone(self, namespace: str) -> "Quotas":
        """Returns a copy with the quotas and holdings of this namespace only."""
        limits, held = self._limits.get(namespace, {}), self._held.get(namespace, {})
        return Quotas(self._settings, {namespace: limits.copy()}, {namespace: held.copy()})

    def every(self, gone: Iterable[Holding] = ()) -> dict[str, tuple[Quota, ...]]:
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
    return Limits(
        memory_mib=None if memory is None else memory * max(settings.memory_factor, 1),
        cores=cores,
        gpus=min(gpus, default=None),
        scopes=tuple(scopes),
        problems=tuple(problems),
    )


def _namespace(quota: ResourceQuota) -> str:
    return quota.metadata.namespace or "default"


def _scopes(quota: ResourceQuota) -> list[ScopedResourceSelectorRequirement]:
    named = [ScopedResourceSelectorRequirement(scope_name=name, operator=EXISTS) for name in quota.spec.scopes]
    selector = quota.spec.scope_selector
    return named if selector is None else [*named, *selector.match_expressions]
