"""Serves kubelet one plugin for each resource that this node has (edge)."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from deviceplugin.allocation.driver_guard import DriverGuard
from deviceplugin.allocation.measured_allocator import MeasuredAllocator
from deviceplugin.allocator import Allocator
from deviceplugin.changes import Changes
from deviceplugin.container.driver_root import DriverRoot
from deviceplugin.container.edits import AllocationSettings, DeviceListStrategy
from deviceplugin.gpus import Gpus
from deviceplugin.immediate.allocator import ImmediateAllocator
from deviceplugin.instances import InstanceAllocator
from deviceplugin.kubelet import PluginServer
from deviceplugin.metrics.metrics import Metrics, Outcome
from deviceplugin.records.checkpoint import Holding
from deviceplugin.settings import KubeletSettings
from deviceplugin.slots.allocator import SlotAllocator
from proto.annotations.node_allocation import AllocationMode


@dataclass(slots=True, kw_only=True)
class Plugins:
    """`mode` returns None until it is chosen; nothing is served before. `restarted` is called for a new kubelet."""

    gpus: Gpus
    changes: Changes
    metrics: Metrics
    kubelet: KubeletSettings
    allocation: AllocationSettings
    driver_root: DriverRoot | None
    read_checkpoint: Callable[[], tuple[Holding, ...] | None]
    slots: SlotAllocator
    immediate: ImmediateAllocator
    restarted: Callable[[], None]
    mode: Callable[[], AllocationMode | None]
    _plugins: dict[str, PluginServer] = field(default_factory=dict)

    @property
    def are_registered(self) -> bool:
        """Returns whether kubelet has registered all resources, and there is one."""
        return bool(self._plugins) and all(plugin.is_registered for plugin in self._plugins.values())

    async def run(self) -> None:
        """Registers a resource with kubelet once there is a GPU of it."""
        async with asyncio.TaskGroup() as group:
            async for found in self.changes.of(self._resources):
                for resource in sorted(found - self._plugins.keys()):
                    self._plugins[resource] = self._plugin(resource)
                    group.create_task(self._plugins[resource].run())

    def _resources(self) -> frozenset[str]:
        inventory = self.gpus.inventory
        if self.mode() is None:
            return frozenset()
        shared = {self.kubelet.resource_name} if inventory.devices else set[str]()
        return frozenset(shared | inventory.instances.keys())

    def _plugin(self, resource: str) -> PluginServer:
        allocator, strategy = self._allocator(resource)
        guarded: Allocator = allocator
        by_files = DeviceListStrategy.DRIVER_FILES in self.allocation.strategies
        if self.driver_root is not None and by_files and allocator is not self.slots:
            guarded = DriverGuard(allocator, self.driver_root, self.read_checkpoint)
        return PluginServer(
            replace(self.kubelet, resource_name=resource),
            MeasuredAllocator(guarded, self.metrics, strategy),
            restarted=self.restarted if allocator is self.immediate else lambda: None,
            told=lambda taken: self.metrics.registered(outcome(taken)),
        )

    def _allocator(self, resource: str) -> tuple[Allocator, str]:
        if resource != self.kubelet.resource_name:
            return InstanceAllocator(self.gpus, self.changes, resource, self.allocation), "instance"
        if self.mode() is AllocationMode.SLOTS:
            return self.slots, AllocationMode.SLOTS
        return self.immediate, AllocationMode.IMMEDIATE


def outcome(taken: bool) -> Outcome:
    return Outcome.OK if taken else Outcome.FAILED
