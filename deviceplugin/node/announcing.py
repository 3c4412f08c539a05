"""Records events of the Node about its GPUs, their limits, its labels and its totals (edge)."""

import asyncio
from collections.abc import Iterator

from deviceplugin.apiserver import OwnNode
from deviceplugin.changes import Changes
from deviceplugin.gpus import Gpus
from deviceplugin.inventory import Inventory
from deviceplugin.limits.watch import LimitsWatch
from deviceplugin.node.contributors import FeatureLabels
from deviceplugin.node.labels import left_to_others
from proto.annotations.node_limits import Backend, NodeLimits
from proto.kubernetes.events import EventRecorder
from proto.kubernetes.objects import Notice


def notices(before: Inventory, after: Inventory) -> Iterator[Notice]:
    """Returns a notice for every GPU that became unhealthy, recovered or is missing, and every pair whose directions
    now disagree.
    """
    if after.is_simulated and not before.is_simulated:
        yield Notice(reason="GPUsSimulated", message="the GPUs of this node are simulated: pods get no real GPU")
    known = {device.uuid for device in before.devices}
    for device in after.devices:
        problem = after.problems.get(device.uuid)
        name = f"GPU {device.index} ({device.uuid})"
        if problem is not None and before.problems.get(device.uuid) != problem:
            yield Notice(reason="GPUUnhealthy", message=f"{name} is unhealthy: {problem}", distinct=True)
        elif problem is None and device.uuid in known and device.uuid in before.problems:
            message = f"{name} is healthy again"
            yield Notice(reason="GPUHealthy", message=message, warning=False, distinct=True)
    for gpu in after.missing:
        if gpu not in before.missing:
            yield Notice(reason="GPUMissing", message=f"{gpu.name} cannot be used: {gpu.problem}", distinct=True)
    for sentence in after.disagreements:
        if sentence not in before.disagreements:
            yield Notice(reason="AsymmetricGPUP2PLink", message=sentence, distinct=True)


def unlimited(before: NodeLimits | None, now: NodeLimits | None) -> Notice | None:
    """Returns the notice of a node that begins to give out unlimited parts of GPUs, or loses a backend."""
    if now is None or before is now:
        return None
    if now.allows_unheld:
        return Notice(
            reason="LimitsNotEnforced", message=f"{_UNHELD[now]}; the setting limits has unenforced", distinct=True
        )
    for backend, notice in _GONE.items():
        if before is not None and backend in before.backends and backend not in now.backends:
            return notice
    return None


_UNHELD = {
    NodeLimits.UNENFORCED: "containers get parts of GPUs, and neither the driver nor HAMi-core holds them to these",
    NodeLimits.PARTLY_ENFORCED: "containers may get parts of several GPUs, and HAMi-core does not hold them to these "
    "for sure",
    NodeLimits.DRIVER_UNENFORCED: "containers get parts of cores, and nothing holds them to these: HAMi-core is not "
    "installed",
    NodeLimits.DRIVER_PARTLY_ENFORCED: "containers may get parts of the cores of several GPUs, and HAMi-core does not "
    "hold them to these for sure",
}
_GONE = {
    Backend.DRIVER: Notice(
        reason="DriverLimitsGone",
        message="the driver limits GPU memory no more: the log of the device plugin has the reason",
        distinct=True,
    ),
    Backend.HAMI_CORE: Notice(
        reason="HAMiCoreGone",
        message="HAMi-core has gone: containers that were given a part of a GPU that it held are not started any more",
        distinct=True,
    ),
}


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
