"""Checks whether an Allocate answer that kubelet keeps is still right when its container starts again: whether it
enforces the container's share, and names files of the driver that is there.

Kubelet uses an answer as long as its pod lives, even one from an earlier daemon. For every file of it that is missing,
containerd creates an empty folder, on the host too. Slots name no files.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from deviceplugin.allocation.decision import decided_devices
from deviceplugin.container.cdi import slot_in
from deviceplugin.container.driver_files import NoDriver
from deviceplugin.container.driver_root import DriverRoot
from deviceplugin.container.edits import PRELOAD_LIST, Mount, NoHamiCore, container_facts
from deviceplugin.container.hami_core import damage
from deviceplugin.container.limits import Backends, enforcement
from deviceplugin.own_threads import OwnThreads
from deviceplugin.plugin_calls import CannotAllocate
from deviceplugin.records.holdings import Holding, ReadCheckpoint
from deviceplugin.settings import AgentSettings
from proto.annotations.errors import AnnotationError
from proto.annotations.keys import DEVICES_ALLOCATED
from proto.devices import Device, DeviceUUID
from proto.kubernetes.objects import Pod


def why_unlimited(
    ids: Sequence[str],
    holdings: Sequence[Holding],
    pods: Mapping[str, Pod],
    inventory: Mapping[DeviceUUID, Device],
    *,
    settings: AgentSettings,
    resource: str,
) -> str:
    """Returns why the answer for these ids enforces no limits, as a sentence; empty if it does. Blocks.

    `pods` by UID.
    """
    for holding in answers_to(ids, holdings, resource):
        damaged = damage(holding.mounts, settings.hook_path)
        is_free = bool(holding.answer) and not settings.allows_unheld
        if sentence := damaged or (_never_limited(holding, pods, inventory, resource) if is_free else ""):
            return sentence
    return ""


def answers_to(ids: Sequence[str], holdings: Sequence[Holding], resource: str) -> Iterator[Holding]:
    """Yields the records of containers that hold exactly these ids and were not answered with a slot."""
    held = frozenset(ids)
    for holding in holdings:
        if holding.ids == held and holding.resource_name == resource and not slot_in(holding.cdi_devices):
            yield holding


def _never_limited(
    holding: Holding, pods: Mapping[str, Pod], inventory: Mapping[DeviceUUID, Device], resource: str
) -> str:
    """Judges an answer that was given while containers without limits were allowed."""
    pod = pods.get(holding.pod_uid)
    if pod is None or PRELOAD_LIST in holding.mounts:
        return ""
    try:
        decided = decided_devices(pod, DEVICES_ALLOCATED, resource)
    except AnnotationError:
        return ""
    for container, shares in zip(pod.all_containers, decided, strict=True):
        if container.name == holding.container_name and all(share.uuid in inventory for share in shares):
            facts = container_facts(pod.metadata.uid, container, "")
            missing = NoHamiCore("it was not there when the pod was admitted; delete the pod")
            found = Backends(hami_core=missing, no_driver="it holds containers with slots alone")
            return enforcement(shares, inventory, facts, found).problem
    return ""


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
