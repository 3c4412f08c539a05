"""PodDisruptionBudgets: how many of the pods that a budget selects may be evicted."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from proto.kubernetes.objects import LabelSelector, LabelSelectorRequirement, Pod, PodDisruptionBudget


class Labelled(Protocol):
    """A pod, as budgets see it."""

    @property
    def uid(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def labels(self) -> Mapping[str, str]: ...


class Budgets:
    """PodDisruptionBudgets by namespace and name. `known` is true once they have been listed."""

    def __init__(self) -> None:
        self.known = False
        self._by_namespace: dict[str, dict[str, PodDisruptionBudget]] = {}

    def replace(self, budgets: Iterable[PodDisruptionBudget]) -> None:
        self._by_namespace.clear()
        for budget in budgets:
            self.apply(budget)
        self.known = True

    def apply(self, budget: PodDisruptionBudget) -> None:
        self._by_namespace.setdefault(budget.metadata.namespace, {})[budget.metadata.name] = budget

    def remove(self, budget: PodDisruptionBudget) -> None:
        budgets = self._by_namespace.get(budget.metadata.namespace, {})
        budgets.pop(budget.metadata.name, None)
        if not budgets:
            self._by_namespace.pop(budget.metadata.namespace, None)

    def protects(self, pod: Pod) -> bool:
        """Returns whether some budget selects the pod."""
        budgets, labels = self._by_namespace.get(pod.metadata.namespace, {}), pod.metadata.labels
        return bool(labels) and any(selects(budget.spec.selector, labels) for budget in budgets.values())

    def violating(self, pods: Iterable[Labelled]) -> frozenset[str]:
        """Returns the UIDs of the pods that violate some budget if the pods are evicted in this order.

        The count is that of kube-scheduler (filterPodsWithPDBViolation of kubernetes/kubernetes): a pod whose eviction
        was granted before costs nothing more.
        """
        left: dict[tuple[str, str], int] = {}
        violating = set()
        for pod in pods:
            for name, budget in self._by_namespace.get(pod.namespace, {}).items():
                # The API server does the same: a pod without labels is in no budget, not even in one for all pods.
                selected = bool(pod.labels) and selects(budget.spec.selector, pod.labels)
                if not selected or pod.name in budget.status.disrupted_pods:
                    continue
                key = pod.namespace, name
                left[key] = left.get(key, budget.status.disruptions_allowed) - 1
                if left[key] < 0:
                    violating.add(pod.uid)
        return frozenset(violating)


def selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Returns whether the selector matches, as policy/v1 defines it: no selector matches nothing, an empty one
    everything.
    """
    if selector is None:
        return False
    return all(labels.get(key) == value for key, value in selector.match_labels.items()) and all(
        _meets(each, labels) for each in selector.match_expressions
    )


def _meets(requirement: LabelSelectorRequirement, labels: Mapping[str, str]) -> bool:
    """An unknown operator selects: a budget then protects more pods, not fewer."""
    match requirement.operator:
        case "In":
            return labels.get(requirement.key) in requirement.values
        case "NotIn":
            return labels.get(requirement.key) not in requirement.values
        case "DoesNotExist":
            return requirement.key not in labels
        case "Exists":
            return requirement.key in labels
    return True
