"""Serves kubelet one plugin for each resource that this node has, by slots or at once (edge)."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from deviceplugin.alignment.watch import AlignmentWatch
from deviceplugin.allocation.kept_answers import DriverFilesCheck
from deviceplugin.allocation.sources import AllocationSources
from deviceplugin.container.driver_root import driver_root
from deviceplugin.container.edits import ContainerEdits, ContainerFacts, DeviceListStrategy, container_edits
from deviceplugin.immediate.allocator import ImmediateAllocator
from deviceplugin.immediate.served_pods import ServedPods
from deviceplugin.kubelet import PluginServer
from deviceplugin.limits.driver import DriverLimits
from deviceplugin.metrics.metrics import Metrics
from deviceplugin.mode.remembered import RememberedMode
from deviceplugin.plugin_calls import Allocator, CannotAllocate, KubeletCalls, ListedHints
from deviceplugin.records.pod_resources import PodResources
from deviceplugin.slots.allocator import SlotAllocator
from deviceplugin.slots.files import SlotFiles
from proto.annotations.node_allocation import AllocationMode
from proto.devices import Device, DeviceShare, DeviceUUID
from proto.kubernetes.objects import Notice, ObjectReference


class InstanceAllocator:
    """Answers for the MIG instances of one profile (strategy `mixed`). Kubelet counts them, so its ids are the answer.
    The extender does not decide them, and they are not shared.
    """

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


class Serving:
    """Nothing is served before it is chosen how."""

    def __init__(
        self,
        sources: AllocationSources,
        metrics: Metrics,
        limits: DriverLimits,
        record: Callable[[ObjectReference, Notice], None],
    ) -> None:
        """`record` gets notices about pods."""
        self._sources = sources
        self._metrics = metrics
        kubelet, read_checkpoint = sources.configuration.kubelet, sources.read_checkpoint
        by_files = DeviceListStrategy.DRIVER_FILES in sources.containers.strategies
        root = driver_root(sources.configuration.host)
        self._driver_files = DriverFilesCheck(root, read_checkpoint) if root and by_files else None
        files = SlotFiles(sources.settings.cdi_directory)
        self._pod_resources = PodResources(kubelet.pod_resources_socket, sources.resource)
        self.alignment = AlignmentWatch(sources, self._pod_resources, record)
        self._slots = SlotAllocator(sources, files, self._pod_resources, limits)
        self._served_pods = ServedPods(sources.own, sources.resource)
        self._immediate = ImmediateAllocator(sources, self._served_pods, self._driver_files)
        self._mode = RememberedMode(sources, slots=files, pod_resources=self._pod_resources)
        self._plugins: dict[str, PluginServer] = {}

    @property
    def mode(self) -> AllocationMode | None:
        """Returns how containers are given their GPUs; None until it is chosen."""
        return self._mode.mode

    @property
    def are_slots(self) -> bool | None:
        """Returns whether containers are served by slots; None until that is chosen."""
        return None if self.mode is None else self.mode is AllocationMode.SLOTS

    @property
    def are_registered(self) -> bool:
        """Returns whether kubelet has registered all resources, and there is one."""
        return bool(self._plugins) and all(plugin.is_registered for plugin in self._plugins.values())

    async def run(self) -> None:
        """Runs until cancelled. Raises ModeOutdated and SlotsUnsupported."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._serve())
                group.create_task(self._allocate())
                group.create_task(self._mode.keep())
                group.create_task(self.alignment.run())
        finally:
            await self._served_pods.close()
            await self._slots.end()
            await self._immediate.end()
            await self._pod_resources.end()

    async def _allocate(self) -> None:
        chosen = await self._mode.choose()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._slots.run() if chosen.mode is AllocationMode.SLOTS else self._catch_up())
            group.create_task(self._mode.confirm(chosen))

    async def _catch_up(self) -> None:
        while True:
            change = self._sources.changes.next()
            self._served_pods.catch_up()
            await change.wait()

    async def _serve(self) -> None:
        """Registers a resource with kubelet once there is a GPU of it."""
        async with asyncio.TaskGroup() as group:
            async for found in self._sources.changes.of(self._resources):
                for resource in sorted(found - self._plugins.keys()):
                    self._plugins[resource] = self._plugin(resource)
                    group.create_task(self._plugins[resource].run())

    def _resources(self) -> frozenset[str]:
        inventory = self._sources.gpus.inventory
        if self.mode is None:
            return frozenset()
        shared = {self._sources.resource} if inventory.devices else set[str]()
        return frozenset(shared | inventory.instances.keys())

    def _plugin(self, resource: str) -> PluginServer:
        allocator, strategy = self._allocator(resource)
        return PluginServer(
            replace(self._sources.configuration.kubelet, resource_name=resource),
            allocator,
            KubeletCalls(self._metrics, strategy),
            ListedHints(changes=self._sources.changes, hints=self.alignment.hints),
            restarted=self._served_pods.kubelet_restarted if allocator is self._immediate else lambda: None,
            registered=self._metrics.registered,
        )

    def _allocator(self, resource: str) -> tuple[Allocator, str]:
        if resource != self._sources.resource:
            return InstanceAllocator(self._sources, resource, self._driver_files), "instance"
        if self.mode is AllocationMode.SLOTS:
            return self._slots, AllocationMode.SLOTS
        return self._immediate, AllocationMode.IMMEDIATE
