"""The node daemon: its parts, and how they run beside each other."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from datetime import datetime
from functools import partial

from deviceplugin.allocation.sources import AllocationSources
from deviceplugin.apiserver import USER_AGENT, OwnNode
from deviceplugin.changes import Changes
from deviceplugin.configuration.table import Configuration
from deviceplugin.configuration_label import Choice, follow
from deviceplugin.container.container_folders import FolderSweep
from deviceplugin.container.hami_core_names import CONTAINER_FOLDERS
from deviceplugin.feedback import FeedbackLoop
from deviceplugin.gpus import Gpus
from deviceplugin.host_paths import cgroups
from deviceplugin.limits.driver import DriverLimits
from deviceplugin.limits.watch import LimitsWatch
from deviceplugin.metrics.metrics import Metrics
from deviceplugin.metrics.view import DaemonView, readiness
from deviceplugin.node.announcing import GpuEvents
from deviceplugin.node.contributors import (
    FeatureLabels,
    NodeSums,
    NodeTotals,
    OutlivingPods,
    RegisteredGpus,
    UndecidedPods,
    numa_annotation,
)
from deviceplugin.node.registration import Offer
from deviceplugin.node.writer import Contributor, NodeWriter
from deviceplugin.nvml.memory_limits import MemoryLimits
from deviceplugin.own_threads import OwnThreads
from deviceplugin.pod_cgroups import PodCgroups
from deviceplugin.records.checkpoint_file import checkpoint_reader
from deviceplugin.remediation.remedy import NodeClocks, Remediation
from deviceplugin.resizing.resizer import LimitChanges, MemoryResizer
from deviceplugin.serving import Serving
from deviceplugin.slim_pods import slim
from proto.annotations.keys import SUMS
from proto.kubernetes.client import ApiServer
from proto.kubernetes.events import EventRecorder

log = logging.getLogger(__name__)

_SWEEP_SECONDS = 10.0
"""Seconds between two checks of what containers wrote in their folders beyond the quota."""

_SILENT_SECONDS = 10.0
"""The daemon logs what it waits for after this time."""


class Agent:
    """One node's daemon, around the GPUs it was given."""

    def __init__(
        self,
        api: ApiServer,
        gpus: Gpus,
        changes: Changes,
        metrics: Metrics,
        configuration: Configuration,
        *,
        now: Callable[[], datetime],
        memory_limits: MemoryLimits | None = None,
    ) -> None:
        """Without `memory_limits` the driver limits no container."""
        settings = configuration.agent
        self._api = api
        self._metrics = metrics
        self._sources = sources = AllocationSources(
            own=_own_node(api, configuration, changes, metrics),
            gpus=gpus,
            changes=changes,
            read_checkpoint=checkpoint_reader(configuration.kubelet.root),
            configuration=configuration,
        )
        self._events = EventRecorder(api=api, component=USER_AGENT, now=now, monotonic=time.monotonic)
        self.driver_limits = DriverLimits(
            *(memory_limits, sources.own, gpus),
            cgroups=cgroups(configuration.host.root),
            folder=settings.limits_folder,
            record=self._events.record,
            count=metrics.memory_limit,
        )
        self._resizer = MemoryResizer(api, sources, self.driver_limits, LimitChanges(self.driver_limits, memory_limits))
        self._serving = Serving(sources, metrics, self.driver_limits, self._events.record)
        self._limits = LimitsWatch(settings, self.driver_limits, changes, lambda: self._serving.are_slots)
        self._remediation = Remediation(api, sources, self._events, NodeClocks(now=now), count=metrics.eviction)
        self._labels = FeatureLabels(sources)
        self._writer = NodeWriter(sources.own, changes, self._contributors(), now=now)
        self._feedback = FeedbackLoop(
            sources.own,
            settings.hook_path,
            settings.feedback,
            sources.resource_priority,
            now=time.time,
            announce=self._events.record,
        )
        folders = [f"{settings.hook_path}/vgpu/{name}" for name in CONTAINER_FOLDERS]
        self._folders = FolderSweep([*folders, settings.limits_folder])

    def _contributors(self) -> Sequence[Contributor]:
        """Returns one contributor for each part of the daemon that decides about the Node."""
        sources = self._sources
        registered = RegisteredGpus(self._offer, sources.settings.hami_scheduler, self._metrics.reported)
        undecided = UndecidedPods(sources)
        outliving = OutlivingPods(sources, PodCgroups(cgroups(sources.configuration.host.root)))
        return (
            Contributor(name="the GPUs", desired=registered.desired, reported=registered.reported),
            Contributor(name="the totals", desired=NodeTotals(sources).desired),
            Contributor(name="the sums", desired=NodeSums(sources).desired),
            Contributor(
                name="how kubelet aligns CPUs and GPUs",
                desired=lambda *_: numa_annotation(self._serving.alignment.numa),
            ),
            Contributor(name="the pods without a decision", desired=undecided.desired, look=undecided.look),
            Contributor(
                name="the pods that run although they were deleted", desired=outliving.desired, look=outliving.look
            ),
            Contributor(name="the times since when GPUs are unhealthy", desired=self._remediation.marks),
            Contributor(name="the condition", desired=self._remediation.condition),
            Contributor(name="the feature labels", desired=self._labels.desired),
        )

    async def run(self, *beside: Coroutine[None, None, None]) -> None:
        """Runs until cancelled, and then removes kubelet's plugin sockets. Raises what a loop raises, in an exception
        group.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for loop in (*self._loops(), *beside):
                    group.create_task(loop)
        finally:
            await self.driver_limits.end()

    def _loops(self) -> Iterator[Coroutine[None, None, None]]:
        sources = self._sources
        yield sources.own.follow_node()
        yield sources.own.follow_pods()
        yield sources.gpus.run()
        yield self._writer.run()
        yield self._remediation.run()
        yield self._serving.run()
        yield self._limits.run()
        yield self.driver_limits.run()
        yield self._resizer.run()
        yield self._feedback.run()
        yield self._sweep()
        yield self._events.run()
        yield log_waits(self.view)
        yield GpuEvents(
            sources.own, sources.gpus, sources.changes, self._events, limits=self._limits, labels=self._labels
        ).run()

    async def follow(self, choice: Choice) -> None:
        """Follows the label of the Node that names a configuration, until another one starts."""
        await follow(self._sources.own, self._sources.changes, self._events, choice)

    def view(self) -> DaemonView:
        """Returns the daemon's view of itself, for metrics and probes."""
        own, gpus = self._sources.own, self._sources.gpus
        return DaemonView(
            node_name=own.name,
            devices=gpus.inventory.devices,
            missing=gpus.inventory.missing,
            pods=own.pods,
            pods_known=own.pods_known,
            mode_known=self._serving.mode is not None,
            registered=self._serving.are_registered,
            gpus_known=gpus.known,
            gpu_problem=gpus.problem,
            simulated=gpus.inventory.is_simulated,
            api_problem=own.problem,
            lasting_gpus=self._remediation.lasting(),
            stranded_pods=len(self._remediation.stranded()),
            limits=self._limits.limits,
            held_by_driver=self.driver_limits.containers,
            lost_by_driver=self.driver_limits.unheld,
            waiting=len(self._feedback.waiting),
        )

    def _offer(self) -> Offer | None:
        """Returns what schedulers are offered; None until the GPUs, their allocation and their limits are known."""
        inventory, limits, mode = self._sources.gpus.inventory, self._limits.limits, self._serving.mode
        if mode is None or limits is None or not inventory.devices:
            return None
        return Offer(
            devices=inventory.devices,
            scores=inventory.scores,
            mode=mode,
            limits=limits,
            simulated=inventory.is_simulated,
        )

    async def _sweep(self) -> None:
        """Removes folders that containers left behind, and enforces the quota of running containers."""
        sweeping, own = OwnThreads("sweep"), self._sources.own
        while True:
            are_known = own.pods_known and not own.problem
            known = frozenset(own.pods) if are_known else None
            await sweeping.call(partial(self._folders.sweep, known, time.monotonic()))
            await asyncio.sleep(_SWEEP_SECONDS)


async def log_waits(view: Callable[[], DaemonView], silent_seconds: float = _SILENT_SECONDS) -> None:
    """Logs why the daemon is not ready: each reason once, until it is ready. Runs until cancelled."""
    logged = set[str]()
    while True:
        await asyncio.sleep(silent_seconds)
        seen = view()
        now = readiness(seen)
        if now.ready:
            logged.clear()
        # The watches log where the API server does not answer.
        elif now.sentence not in logged and not seen.api_problem:
            logged.add(now.sentence)
            log.warning("not ready: %s", now.sentence)


def _own_node(api: ApiServer, configuration: Configuration, changes: Changes, metrics: Metrics) -> OwnNode:
    resource, totals = configuration.kubelet.resource_name, (*configuration.total_names, *SUMS)
    name = configuration.agent.node_name
    return OwnNode(api, name, changes, seen=metrics.saw, slim=lambda pod: slim(pod, resource, totals))
