"""Refuses the start of containers whose Allocate answer names files of a driver that is gone.

Kubelet keeps Allocate's answer as long as the pod lives. For every file of it that is missing, containerd creates a
folder, on the host too.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from deviceplugin.allocator import CannotAllocate
from deviceplugin.container.driver_files import NoDriver
from deviceplugin.container.driver_root import DriverRoot
from deviceplugin.container.edits import Mount
from deviceplugin.own_threads import OwnThreads
from deviceplugin.records.checkpoint import ReadCheckpoint


class DriverFilesCheck:
    """Checks the driver's files before each start of a container. `root` is where they are."""

    def __init__(self, root: DriverRoot, read_checkpoint: ReadCheckpoint) -> None:
        self._root = root
        self._thread = OwnThreads("driver files")
        self._read_checkpoint = read_checkpoint

    async def check(self, ids: Sequence[str]) -> None:
        """Raises CannotAllocate if a file of the driver that the container was given has moved or is missing."""
        held = frozenset(ids)
        try:
            # The last reading of the GPUs may be half a minute old.
            found = await self._thread.call(self._root.files)
        except NoDriver as error:
            raise CannotAllocate(str(error)) from error
        for holding in await self._read_checkpoint() or ():
            if holding.ids != held:
                continue
            if is_outdated(holding.mounts, found.mounts):
                raise CannotAllocate(
                    "the NVIDIA driver was replaced since this container got its files; delete the pod, and a "
                    "new one gets the files of the current driver"
                )
            if gone := await self._thread.call(partial(self._root.missing, holding.mounts.values())):
                raise CannotAllocate(
                    f"{gone[0]} is missing, and this container was given it; restore it, or delete the pod, and a new "
                    "one starts without it"
                )


def is_outdated(answered: Mapping[str, str], now: Sequence[Mount]) -> bool:
    """Returns whether a file of the driver has another path on the host now. `answered` maps paths in the container to
    paths on the host.
    """
    return any(answered.get(mount.container_path, mount.host_path) != mount.host_path for mount in now)
