"""The interface between the edge to kubelet and the packages that allocate."""

from collections.abc import Sequence
from typing import Protocol

from deviceplugin.container.edits import ContainerEdits
from proto.devices import Device


class CannotAllocate(Exception):
    """This call is refused; the text goes to the pod's events."""


class Allocator(Protocol):
    """Answers kubelet's calls about the GPUs."""

    def devices(self) -> Sequence[Device]:
        """Returns the GPUs as they are now."""

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """Returns the replica ids on the GPUs decided for the container of the call; empty if unknown."""

    async def allocate(self, ids: Sequence[str]) -> ContainerEdits:
        """Returns the edits for the container of the call. Raises CannotAllocate."""

    @property
    def pre_start_required(self) -> bool:
        """Returns whether `pre_start` must be called before each start of a container."""

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Prepares the start of a container that holds these ids. Raises CannotAllocate."""
