"""Decides which pods are in the scope of a ResourceQuota.

Source: pkg/quota/v1/evaluator/core/pods.go and pkg/apis/core/v1/helper/qos of kubernetes/kubernetes v1.37.1.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from sys import intern
from typing import NamedTuple

from proto.kubernetes.objects import Pod, PodAffinity, PodAffinityTerm, PodSpec, Resources

EXISTS = "Exists"
_COMPUTE = ("cpu", "memory")
_NOTHING = re.compile(r"[+-]?[0.]+(?:[eE][+-]?[0-9]+|[numkKMGTPE]?i?)")
"""A quantity of 0. A pod shown to the webhook may hold thousands, and to compute their values takes long."""


class QuotaClass(NamedTuple):
    """Pods of one class are in the same scopes."""

    priority_class: str = ""
    """The name of the class; empty for a pod without one."""
    terminating: bool = False
    """True if the pod has a deadline; deletion does not count."""
    best_effort: bool = True
    cross_namespace_affinity: bool = False


class ScopeError(ValueError):
    """A scope cannot be read. The message is one sentence."""


@dataclass(frozen=True, slots=True)
class Scope:
    """A scope as a quota states it. Raises ScopeError for a scope that the API server did not accept when this was
    written.
    """

    name: str
    operator: str = EXISTS
    values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.name != _PRIORITY_CLASS and self.name not in _SCOPES:
            raise ScopeError(f"scope {self.name!r}: expected {_PRIORITY_CLASS}, {', '.join(_SCOPES)}")
        operators = tuple(_OPERATORS) if self.name in (_PRIORITY_CLASS, "VolumeAttributesClass") else (EXISTS,)
        if self.operator not in operators:
            raise ScopeError(f"scope {self.name}: operator {self.operator!r}: expected {', '.join(operators)}")
        if self.operator in ("In", "NotIn") and not self.values:
            raise ScopeError(f"scope {self.name}: operator {self.operator} needs values")

    def includes(self, pods: QuotaClass) -> bool:
        """Returns whether pods of this class are in the scope."""
        if self.name == _PRIORITY_CLASS:
            return _OPERATORS[self.operator](pods.priority_class, self.values)
        return _SCOPES[self.name](pods)


_PRIORITY_CLASS = "PriorityClass"
_OPERATORS: Mapping[str, Callable[[str, Sequence[str]], bool]] = {
    "In": lambda name, values: name in values,
    "NotIn": lambda name, values: name not in values,
    EXISTS: lambda name, _: bool(name),
    "DoesNotExist": lambda name, _: not name,
}
_SCOPES: Mapping[str, Callable[[QuotaClass], bool]] = {
    "BestEffort": lambda pods: pods.best_effort,
    "NotBestEffort": lambda pods: not pods.best_effort,
    "Terminating": lambda pods: pods.terminating,
    "NotTerminating": lambda pods: not pods.terminating,
    "CrossNamespacePodAffinity": lambda pods: pods.cross_namespace_affinity,
    "VolumeAttributesClass": lambda _: False,
}


def are_in(pods: QuotaClass, scopes: Iterable[Scope]) -> bool:
    """Returns whether pods of this class are in every scope; without scopes all pods are."""
    return all(scope.includes(pods) for scope in scopes)


def quota_class(pod: Pod) -> QuotaClass:
    """Returns the class by the pod's spec alone: before creation its author may claim any QoS class in the status."""
    spec = pod.spec
    terminating = spec.active_deadline_seconds is not None and spec.active_deadline_seconds >= 0
    return _one(spec.priority_class_name, terminating, is_best_effort(spec), has_cross_namespace_affinity(spec))


@lru_cache(maxsize=4096)
def _one(priority_class: str, terminating: bool, best_effort: bool, cross_namespace_affinity: bool) -> QuotaClass:
    """Returns one object for equal values: every pod that holds GPUs has one."""
    return QuotaClass(intern(priority_class), terminating, best_effort, cross_namespace_affinity)


def is_best_effort(spec: PodSpec) -> bool:
    """Returns whether the pod requests neither cpu nor memory. If they are set for the whole pod, its containers do not
    count.
    """
    if spec.resources is not None and any(_pod_level_names(spec.resources)):
        return not any(_compute_amounts(spec.resources))
    containers = (*spec.init_containers, *spec.containers)
    return not any(some for container in containers for some in _compute_amounts(container.resources))


def has_cross_namespace_affinity(spec: PodSpec) -> bool:
    if spec.affinity is None:
        return False
    both = (*_terms(spec.affinity.pod_affinity), *_terms(spec.affinity.pod_anti_affinity))
    return any(term.namespaces or term.namespace_selector is not None for term in both)


def _terms(affinity: PodAffinity | None) -> Iterator[PodAffinityTerm]:
    if affinity is not None:
        yield from affinity.required_during_scheduling_ignored_during_execution
        for weighted in affinity.preferred_during_scheduling_ignored_during_execution:
            yield weighted.pod_affinity_term


def _pod_level_names(resources: Resources) -> Iterator[str]:
    return (
        name for name in (*resources.requests, *resources.limits) if name in _COMPUTE or name.startswith("hugepages-")
    )


def _compute_amounts(resources: Resources) -> Iterator[bool]:
    """Yields for each amount of cpu or memory whether it is more than 0. An unreadable one counts as more."""
    for amounts in (resources.requests, resources.limits):
        for name in _COMPUTE:
            if name in amounts:
                yield _NOTHING.fullmatch(str(amounts[name])) is None
