"""The node daemon: its parts, and the order in which they start and run."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

from deviceplugin.apiserver import OwnNode
from deviceplugin.changes import Changes
from deviceplugin.container.container_folders import FolderSweep
from deviceplugin.container.driver_root import DriverRoot
from deviceplugin.container.edits import AllocationSettings
from deviceplugin.container.hami_core_names import CONTAINER_FOLDERS
from deviceplugin.feedback import FeedbackLoop
from deviceplugin.following import Choice, follow
from deviceplugin.gpus import Gpus
from deviceplugin.immediate.allocator import ImmediateAllocator
from deviceplugin.immediate.served_pods import ServedPods
from deviceplugin.limits.driver import DriverLimits
from deviceplugin.limits.watch import LimitsWatch
from deviceplugin.metrics.metrics import Metrics
from deviceplugin.metrics.view import DaemonView
from deviceplugin.mode.remembered import RememberedMode
from deviceplugin.node.announcing import GpuEvents, warn_without_totals
from deviceplugin.node.contributors import FeatureLabels, NodeTotals, OutlivingPods, RegisteredGpus, UndecidedPods
from deviceplugin.node.registration import Offer
from deviceplugin.node.writer import Contributor, NodeWriter
from deviceplugin.nvml.memory_limits import MemoryLimits
from deviceplugin.own_threads import OwnThreads
from deviceplugin.pod_cgroups import PodCgroups
from deviceplugin.records.checkpoint_file import checkpoint_reader
from deviceplugin.records.pod_resources import PodResources
from deviceplugin.remediation.remedy import Remediation
from deviceplugin.replicas import split_replica
from deviceplugin.serving import Plugins, outcome
from deviceplugin.settings import AgentSettings, KubeletSettings
from deviceplugin.slim_pods import slim
from deviceplugin.slots.allocator import SlotAllocator
from deviceplugin.slots.files import SlotFiles
from proto.annotations.node_allocation import AllocationMode
from proto.devices import DeviceUUID
from proto.kubernetes.client import ApiServer
from proto.kubernetes.events import EventRecorder

_SWEEP_SECONDS = 10.0
"""Seconds between two checks of what containers wrote in their folders beyond the quota."""
EVENT_SOURCE = "topogpu-device-plugin"


class Agent:
    """One node's daemon, around the GPUs it was given."""

    def __init__(
        self,
        api: ApiServer,
        gpus: Gpus,
        changes: Changes,
        metrics: Metrics,
        settings: AgentSettings,
        *,
        now: Callable[[], datetime],
        allocation: AllocationSettings,
        kubelet: KubeletSettings,
        driver_root: DriverRoot | None = None,
        memory_limits: MemoryLimits | None = None,
    ) -> None:
        """Without `memory_limits` the driver limits no container."""
        self._settings = settings
        self._gpus = gpus
        self._changes = changes
        self._api = api
        self._resource = resource = kubelet.resource_name
        totals = tuple(settings.total_names)
        self._own = OwnNode(
            api, settings.node_name, changes, heard=metrics.heard, slim=lambda pod: slim(pod, resource, totals)
        )
        self._served_pods = ServedPods(self._own, resource)
        self._events = EventRecorder(api=api, component=EVENT_SOURCE, now=now, monotonic=time.monotonic)
        self._remediation = Remediation(
            api,
            self._own,
            gpus,
            changes,
            self._events,
            settings=settings.remediation,
            resource=resource,
            now=now,
            booked=self._booked,
            count=metrics.eviction,
        )
        self._read_checkpoint = read_checkpoint = checkpoint_reader(kubelet.root)
        self.driver_limits = DriverLimits(
            *(memory_limits, self._own, gpus, settings), record=self._events.record, count=metrics.memory_limit
        )
        slot_files = SlotFiles(settings.cdi_directory)
        self._pod_resources = PodResources(kubelet.pod_resources_socket, resource)
        self._slots = SlotAllocator(
            self._own,
            gpus,
            changes,
            slot_files,
            self._pod_resources,
            driver=self.driver_limits,
            settings=settings,
            allocation=allocation,
            resource=resource,
            read_checkpoint=read_checkpoint,
        )
        self._immediate = ImmediateAllocator(
            self._own,
            gpus,
            self._served_pods,
            changes,
            settings=settings,
            allocation=allocation,
            resource=resource,
            read_checkpoint=read_checkpoint,
        )
        self._memory = RememberedMode(
            self._own, gpus, changes, settings, slots=slot_files, pod_resources=self._pod_resources
        )
        self._limits = LimitsWatch(settings, self.driver_limits, changes, self._are_slots)
        self._labels = FeatureLabels(gpus, enabled=settings.feature_labels)
        self._writer = NodeWriter(self._own, changes, self._contributors(metrics), now=now)
        self._feedback = FeedbackLoop(
            self._own,
            settings.hook_path,
            settings.feedback,
            allocation.priority_resource,
            now=time.time,
            announce=self._events.record,
        )
        folders = [f"{settings.hook_path}/vgpu/{name}" for name in CONTAINER_FOLDERS]
        self._folders = FolderSweep([*folders, settings.limits_folder])
        self._announcing = GpuEvents(self._own, gpus, changes, self._events, limits=self._limits, labels=self._labels)
        self._plugins = Plugins(
            gpus=gpus,
            changes=changes,
            metrics=metrics,
            kubelet=kubelet,
            allocation=allocation,
            driver_root=driver_root,
            read_checkpoint=read_checkpoint,
            slots=self._slots,
            immediate=self._immediate,
            restarted=self._served_pods.kubelet_restarted,
            mode=lambda: self._memory.mode,
        )

    def _contributors(self, metrics: Metrics) -> Sequence[Contributor]:
        """Returns one contributor for each part of the daemon that decides about the Node."""
        own, gpus, settings, resource = self._own, self._gpus, self._settings, self._resource
        registered = RegisteredGpus(
            self._offer, settings.hami_scheduler, lambda taken: metrics.reported(outcome(taken))
        )
        undecided = UndecidedPods(own, gpus, resource, self._read_checkpoint)
        outliving = OutlivingPods(own, gpus, resource, PodCgroups(Path(settings.cgroup_root)))
        return (
            Contributor(name="the GPUs", desired=registered.desired, reported=registered.reported),
            Contributor(name="the totals", desired=NodeTotals(own, gpus, settings).desired),
            Contributor(name="the pods without a decision", desired=undecided.desired),
            Contributor(name="the pods that run although they were deleted", desired=outliving.desired),
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
                for loop in (
                    self._own.follow_node(),
                    self._own.follow_pods(),
                    self._gpus.run(),
                    self._writer.run(),
                    self._remediation.run(),
                    self._announcing.run(),
                    warn_without_totals(self._api, self._own, self._events, self._settings, self._resource),
                    self._plugins.run(),
                    self._allocate(),
                    self._memory.keep(),
                    self._limits.run(),
                    self.driver_limits.run(),
                    self._feedback.run(),
                    self._sweep(),
                    self._events.run(),
                    *beside,
                ):
                    group.create_task(loop)
        finally:
            await self._served_pods.close()
            await self._slots.end()
            await self.driver_limits.end()
            await self._immediate.end()
            await self._pod_resources.end()

    async def follow(self, choice: Choice) -> None:
        """Follows the label of the Node that names a configuration, until another one starts."""
        await follow(self._own, self._changes, self._events, choice)

    def view(self) -> DaemonView:
        """Returns the daemon's view of itself, for metrics and probes."""
        return DaemonView(
            node_name=self._own.name,
            devices=self._gpus.inventory.devices,
            missing=self._gpus.inventory.missing,
            pods=self._own.pods,
            pods_known=self._own.pods_known,
            registered=self._plugins.are_registered,
            gpus_known=self._gpus.known,
            gpu_problem=self._gpus.problem,
            simulated=self._gpus.inventory.is_simulated,
            api_problem=self._own.problem,
            lasting_gpus=self._remediation.lasting(),
            stranded_pods=len(self._remediation.stranded()),
            limits=self._limits.limits,
            held_by_driver=self.driver_limits.containers,
            lost_by_driver=self.driver_limits.unheld,
            waiting=len(self._feedback.waiting),
        )

    def _are_slots(self) -> bool | None:
        """Returns whether containers are served by slots; None until that is chosen."""
        return None if self._memory.mode is None else self._memory.mode is AllocationMode.SLOTS

    def _booked(self) -> frozenset[DeviceUUID]:
        """Returns the GPUs whose ids kubelet has given out."""
        holdings = self._read_checkpoint() or ()
        return frozenset(split_replica(identifier)[0] for each in holdings for identifier in each.ids)

    def _offer(self) -> Offer | None:
        """Returns what schedulers are offered; None until the GPUs, their allocation and their limits are known."""
        inventory, limits = self._gpus.inventory, self._limits.limits
        if self._memory.mode is None or limits is None or not inventory.devices:
            return None
        return Offer(
            devices=inventory.devices,
            scores=inventory.scores,
            mode=self._memory.mode,
            limits=limits,
            simulated=inventory.is_simulated,
        )

    async def _allocate(self) -> None:
        """Allocates once it is chosen how; until then nothing is reported or served."""
        chosen = await self._memory.choose()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._slots.run() if chosen.mode is AllocationMode.SLOTS else self._catch_up())
            group.create_task(self._memory.confirm(chosen))

    async def _catch_up(self) -> None:
        while True:
            change = self._changes.next()
            self._served_pods.catch_up()
            await change.wait()

    async def _sweep(self) -> None:
        """Removes folders that containers left behind, and enforces the quota of running containers."""
        sweeping = OwnThreads("sweep")
        while True:
            are_known = self._own.pods_known and not self._own.problem
            known = frozenset(self._own.pods) if are_known else None
            await sweeping.call(partial(self._folders.sweep, known, time.monotonic()))
            await asyncio.sleep(_SWEEP_SECONDS)
