"""Limits of namespaces on GPUs, GPU memory and cores, from their ResourceQuotas."""

from collections.abc import Iterable
from dataclasses import dataclass

from proto.kubernetes.objects import ResourceQuota
from proto.quantity import QuantityError, integer_quantity
from scheduler_ext.requests import RequestSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """None does not limit."""

    memory_mib: int | None = None
    cores: int | None = None
    gpus: int | None = None
    problems: tuple[str, ...] = ()


def read_limits(quota: ResourceQuota, settings: RequestSettings) -> Limits:
    """An unreadable limit counts as 0 and is named in `problems`: nobody is let past it.

    Scopes are not read: memory, cores and `limits.` of GPUs hold for all pods of the namespace. `requests.` of GPUs the
    API server holds itself, and knows for which pods; without scopes it is read for pods that were there before.
    """
    problems: list[str] = []

    def limit(key: str) -> int | None:
        if key not in quota.spec.hard:
            return None
        try:
            return integer_quantity(quota.spec.hard[key])
        except QuantityError as error:
            problems.append(f"{key}: {error}; nothing is admitted until it is corrected")
            return 0

    memory, cores = limit(f"limits.{settings.names.memory}"), limit(f"limits.{settings.names.cores}")
    memory_mib = None if memory is None else memory * max(settings.memory_factor, 1)
    words = ("limits",) if quota.spec.scopes or quota.spec.scope_selector else ("limits", "requests")
    gpus = _smallest(limit(f"{word}.{settings.names.count}") for word in words)
    return Limits(memory_mib=memory_mib, cores=cores, gpus=gpus, problems=tuple(problems))


def strictest(limits: Iterable[Limits]) -> Limits:
    """Every quota of a namespace must hold, so the smallest limit counts."""
    every = tuple(limits)
    return Limits(
        memory_mib=_smallest(each.memory_mib for each in every),
        cores=_smallest(each.cores for each in every),
        gpus=_smallest(each.gpus for each in every),
    )


def _smallest(limits: Iterable[int | None]) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)
