"""Records events of the Node about its GPUs, their limits, its labels and its totals (edge)."""

import asyncio

from deviceplugin.apiserver import OwnNode
from deviceplugin.changes import Changes
from deviceplugin.gpus import Gpus, Inventory
from deviceplugin.limits.watch import LimitsWatch
from deviceplugin.node.contributors import FeatureLabels
from deviceplugin.node.labels import left_to_others
from deviceplugin.notices import notices, unlimited
from proto.annotations.node_limits import NodeLimits
from proto.kubernetes.events import EventRecorder


class GpuEvents:
    """Records changes of the GPUs and of their limits, and labels that other programs write."""

    def __init__(
        self,
        own: OwnNode,
        gpus: Gpus,
        changes: Changes,
        events: EventRecorder,
        *,
        limits: LimitsWatch,
        labels: FeatureLabels,
    ) -> None:
        self._own = own
        self._gpus = gpus
        self._limits = limits
        self._feature_labels = labels
        self._changes = changes
        self._events = events

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as group:
            for loop in (self._gpus_changed(), self._limits_changed(), self._labels_of_others()):
                group.create_task(loop)

    async def _gpus_changed(self) -> None:
        announced = Inventory()
        async for inventory in self._changes.of(lambda: self._gpus.inventory):
            for notice in notices(announced, inventory):
                self._events.record(self._own.reference(), notice)
            announced = inventory

    async def _labels_of_others(self) -> None:
        async for others in self._changes.of(lambda: self._feature_labels.others(self._own.node)):
            if others:
                self._events.record(self._own.reference(), left_to_others(others))

    async def _limits_changed(self) -> None:
        announced: NodeLimits | None = None
        async for limits in self._changes.of(lambda: self._limits.limits):
            notice = unlimited(announced, limits)
            if notice is not None:
                self._events.record(self._own.reference(), notice)
            announced = limits
