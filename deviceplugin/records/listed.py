"""The answers of pod-resources: containers with their device ids, and CPUs."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedContainer:
    """A container in pod-resources, with all ids it holds of our resource."""

    namespace: str
    pod: str
    container: str
    ids: frozenset[str]

    @property
    def name(self) -> str:
        return f"{self.namespace}/{self.pod}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExclusiveCpus:
    """The CPUs that kubelet gives to single containers."""

    all: frozenset[int]
    """The CPUs that it may give away."""
    of_others: frozenset[int]
    """The CPUs that it gave to pods without a GPU of our resource."""
    of_ours: Mapping[tuple[str, str, str], frozenset[int]] = field(default_factory=dict)
    """The CPUs of each container of the other pods that has any, by namespace, pod and container."""
    without_gpus: frozenset[int] = frozenset()
    """The CPUs among them of containers without a GPU."""

    @property
    def free(self) -> frozenset[int]:
        """Returns the CPUs that no container has."""
        return self.all.difference(self.of_others, *self.of_ours.values())
