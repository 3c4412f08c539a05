"""MIG instances with their own resources (strategy `mixed`): kubelet counts them, so its ids are the answer."""

from collections.abc import Sequence

from deviceplugin.allocation.driver_files_check import DriverFilesCheck
from deviceplugin.allocation.sources import AllocationSources
from deviceplugin.allocator import CannotAllocate
from deviceplugin.container.edits import ContainerEdits, ContainerFacts, container_edits
from proto.devices import Device, DeviceShare, DeviceUUID


class InstanceAllocator:
    """Answers for the instances of one profile. The extender does not decide them, and they are not shared."""

    def __init__(self, sources: AllocationSources, resource: str, driver_files: DriverFilesCheck | None = None) -> None:
        self._gpus = sources.gpus
        self._resource = resource
        self._allocation = sources.containers
        self._driver_files = driver_files

    @property
    def pre_start_required(self) -> bool:
        return self._driver_files is not None

    def devices(self) -> Sequence[Device]:
        """Returns the instances as they are now."""
        return self._gpus.inventory.instances.get(self._resource, ())

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
        """Checks the driver's files that the container was given. Raises CannotAllocate."""
        if self._driver_files is not None:
            await self._driver_files.check(ids)
