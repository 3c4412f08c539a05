"""What the edge to kubelet asks, and the rooms that allocate answer."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from deviceplugin.container.edits import ContainerEdits
from proto.devices import Device


class CannotAllocate(Exception):
    """This call is refused; the text goes to the pod's events."""


class Allocator(Protocol):
    """Who answers for the GPUs."""

    def devices(self) -> AsyncIterator[tuple[Device, ...]]:
        """The GPUs now and after every change."""

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """The replica ids that land on the GPUs decided for whoever asks; empty when that is unknown."""

    async def allocate(self, ids: Sequence[str]) -> ContainerEdits:
        """What the container that asks is given. Raises CannotAllocate."""

    @property
    def pre_start_required(self) -> bool:
        """Does `pre_start` need to be called before each start of a container?"""

    async def pre_start(self, ids: Sequence[str]) -> None:
        """A container that holds these ids is about to be created. Raises CannotAllocate."""
