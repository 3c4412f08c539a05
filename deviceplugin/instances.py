"""MIG instances with their own resources (strategy `mixed`): kubelet counts them, so its ids are the answer."""

from collections.abc import AsyncGenerator, Sequence

from deviceplugin.allocator import CannotAllocate
from deviceplugin.changes import Changes
from deviceplugin.container.edits import AllocationSettings, ContainerEdits, ContainerFacts, container_edits
from deviceplugin.gpus import Gpus
from proto.devices import Device, DeviceShare, DeviceUUID


class InstanceAllocator:
    """Answers for the instances of one profile. The extender does not decide them, and they are not shared."""

    pre_start_required = False

    def __init__(self, gpus: Gpus, changes: Changes, resource: str, allocation: AllocationSettings) -> None:
        self._gpus = gpus
        self._changes = changes
        self._resource = resource
        self._allocation = allocation

    def devices(self) -> AsyncGenerator[tuple[Device, ...], None]:
        """Yields the instances, now and after every change."""
        return self._changes.of(lambda: self._gpus.inventory.instances.get(self._resource, ()))

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:  # noqa: ARG002
        """Returns nothing, because one instance of a profile is as good as another."""
        return ()

    async def allocate(self, ids: Sequence[str]) -> ContainerEdits:
        """Raises CannotAllocate."""
        known = {device.uuid: device for device in self._gpus.inventory.instances.get(self._resource, ())}
        for identifier in ids:
            device = known.get(DeviceUUID(identifier))
            if device is None or not device.healthy:
                problem = "is not one of this node" if device is None else "is unhealthy"
                raise CannotAllocate(f"MIG instance {identifier} ({self._resource}) {problem}")
        shares = tuple(
            DeviceShare(uuid=device.uuid, memory_mib=device.memory_mib, cores=device.cores)
            for device in (known[DeviceUUID(identifier)] for identifier in ids)
        )
        # Kubelet does not name the container; its first instance identifies it as uniquely.
        container = ContainerFacts(pod_uid=min(ids, default=""), name="mig")
        return container_edits(shares, known, container, self._allocation, None, hardware=self._gpus.inventory.hardware)

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Does nothing, because Allocate answers everything."""
