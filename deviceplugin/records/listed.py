"""The containers that kubelet lists with their device ids."""

from dataclasses import dataclass


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
