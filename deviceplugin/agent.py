"""The node daemon: its parts, and the order in which they start and run."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

from deviceplugin.allocation.checkpoint_file import checkpoint_reader
from deviceplugin.allocation.choice import choose_allocation, confirm
from deviceplugin.allocation.driver_guard import DriverGuard
from deviceplugin.allocation.immediate_allocator import ImmediateAllocator
from deviceplugin.allocation.instance_allocator import InstanceAllocator
from deviceplugin.allocation.measured_allocator import MeasuredAllocator
from deviceplugin.allocation.memory import Memory, memorable, memory_of, why_foreign
from deviceplugin.allocation.memory_file import MemoryFile
from deviceplugin.allocation.pod_resources import PodResources
from deviceplugin.allocation.served_pods import ServedPods
from deviceplugin.allocation.slot_allocator import SlotAllocator
from deviceplugin.allocation.slot_files import SlotFiles
from deviceplugin.allocator import Allocator
from deviceplugin.apiserver import OwnNode, device_classes
from deviceplugin.by_pod import ByPod
from deviceplugin.changes import Changes
from deviceplugin.container.container_folders import FolderSweep
from deviceplugin.container.driver_root import DriverRoot
from deviceplugin.container.edits import AllocationSettings, DeviceListStrategy
from deviceplugin.container.hook_names import CONTAINER_FOLDERS
from deviceplugin.feedback import FeedbackLoop
from deviceplugin.following import Choice, follow
from deviceplugin.gpus import Gpus, Inventory
from deviceplugin.hook_watch import HookWatch
from deviceplugin.kubelet import PluginServer
from deviceplugin.metrics.metrics import Metrics, Outcome
from deviceplugin.metrics.view import DaemonView
from deviceplugin.node.contributors import FeatureLabels, NodeTotals, OutlivingPods, RegisteredGpus, UndecidedPods
from deviceplugin.node.labels import left_to_others
from deviceplugin.node.registration import Offer
from deviceplugin.node.totals import hazardous
from deviceplugin.node.writer import Contributor, NodeWriter
from deviceplugin.notices import notices, unlimited, untotalled
from deviceplugin.own_threads import OwnThreads
from deviceplugin.pod_cgroups import PodCgroups
from deviceplugin.remediation.remedy import Remediation
from deviceplugin.replicas import split_replica
from deviceplugin.settings import AgentSettings, KubeletSettings
from deviceplugin.slim_pods import slim
from proto.annotations.node_allocation import AllocationMode
from proto.annotations.node_limits import NodeLimits
from proto.devices import DeviceUUID
from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiError, ApiUnreachable
from proto.kubernetes.events import EventRecorder
from proto.kubernetes.objects import Pod

log = logging.getLogger(__name__)

_SWEEP_SECONDS = 10.0
"""Seconds between two checks of what containers wrote in their folders beyond the quota."""
_CLASSES_SECONDS = 600.0
_MEMORY_SECONDS = 0.2
"""Seconds between two writes: in a burst many pods share one."""
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
    ) -> None:
        self._settings = settings
        self._driver_root = driver_root
        self._gpus = gpus
        self._changes = changes
        self._metrics = metrics
        self._kubelet = kubelet
        self._allocation = allocation
        self._api = api
        resource, totals = kubelet.resource_name, tuple(settings.total_names)
        self._own = OwnNode(
            api, settings.node_name, changes, heard=metrics.heard, slim=lambda pod: slim(pod, resource, totals)
        )
        self._served_pods = ServedPods(self._own, kubelet.resource_name)
        self._events = EventRecorder(api=api, component=EVENT_SOURCE, now=now, monotonic=time.monotonic)
        self._remediation = Remediation(
            api,
            self._own,
            gpus,
            changes,
            self._events,
            settings=settings.remediation,
            resource=kubelet.resource_name,
            now=now,
            booked=self._booked,
            count=metrics.eviction,
        )
        self._mode: AllocationMode | None = None
        self._memory_problem = ""
        self._read_checkpoint = read_checkpoint = checkpoint_reader(kubelet.root)
        self._memory_file = MemoryFile(settings.cdi_directory)
        self._memory_thread = OwnThreads("memory")
        self._slot_files = SlotFiles(settings.cdi_directory)
        self._pod_resources = PodResources(kubelet.pod_resources_socket, kubelet.resource_name)
        self._slots = SlotAllocator(
            self._own,
            gpus,
            changes,
            self._slot_files,
            self._pod_resources,
            settings=settings,
            allocation=allocation,
            resource=kubelet.resource_name,
            read_checkpoint=read_checkpoint,
        )
        self._immediate = ImmediateAllocator(
            self._own,
            gpus,
            self._served_pods,
            changes,
            settings=settings,
            allocation=allocation,
            resource=kubelet.resource_name,
            read_checkpoint=read_checkpoint,
        )
        self._hook = HookWatch(settings.hook_path, settings.unenforced_shares, changes)
        self._labels = FeatureLabels(gpus, enabled=settings.feature_labels)
        registered = RegisteredGpus(
            self._offer, settings.hami_scheduler, lambda taken: metrics.reported(_outcome(taken))
        )
        undecided = UndecidedPods(self._own, gpus, kubelet.resource_name, read_checkpoint)
        outliving = OutlivingPods(self._own, gpus, kubelet.resource_name, PodCgroups(Path(settings.cgroup_root)))
        self._writer = NodeWriter(
            self._own,
            changes,
            (
                Contributor(name="the GPUs", desired=registered.desired, reported=registered.reported),
                Contributor(name="the totals", desired=NodeTotals(self._own, gpus, settings).desired),
                Contributor(name="the pods without a decision", desired=undecided.desired),
                Contributor(name="the pods that run although they were deleted", desired=outliving.desired),
                Contributor(name="the times since when GPUs are unhealthy", desired=self._remediation.marks),
                Contributor(name="the condition", desired=self._remediation.condition),
                Contributor(name="the feature labels", desired=self._labels.desired),
            ),
            now=now,
        )
        self._feedback = FeedbackLoop(
            self._own,
            settings.hook_path,
            settings.feedback,
            allocation.priority_resource,
            now=time.time,
            announce=self._events.record,
        )
        self._folders = FolderSweep([f"{settings.hook_path}/vgpu/{name}" for name in CONTAINER_FOLDERS])
        self._plugins: dict[str, PluginServer] = {}

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
                    self._announce_labels(),
                    self._warn_without_totals(),
                    self._serve(),
                    self._allocate(),
                    self._remember(),
                    self._announce(),
                    self._announce_limits(),
                    self._hook.run(),
                    self._feedback.run(),
                    self._sweep(),
                    self._events.run(),
                    *beside,
                ):
                    group.create_task(loop)
        finally:
            await self._served_pods.close()
            await self._slots.end()
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
            registered=bool(self._plugins) and all(plugin.is_registered for plugin in self._plugins.values()),
            gpus_known=self._gpus.known,
            gpu_problem=self._gpus.problem,
            simulated=self._gpus.inventory.is_simulated,
            api_problem=self._own.problem,
            lasting_gpus=self._remediation.lasting(),
            stranded_pods=len(self._remediation.stranded()),
            limits=self._hook.limits,
            waiting=len(self._feedback.waiting),
        )

    def _booked(self) -> frozenset[DeviceUUID]:
        """The GPUs whose ids kubelet has given out."""
        holdings = self._read_checkpoint() or ()
        return frozenset(split_replica(identifier)[0] for each in holdings for identifier in each.ids)

    def _offer(self) -> Offer | None:
        """Returns what schedulers are offered; None until the GPUs, their allocation and their limits are known."""
        inventory, limits = self._gpus.inventory, self._hook.limits
        if self._mode is None or limits is None or not inventory.devices:
            return None
        return Offer(
            devices=inventory.devices,
            scores=inventory.scores,
            mode=self._mode,
            limits=limits,
            simulated=inventory.is_simulated,
        )

    async def _warn_without_totals(self) -> None:
        """Writes an event, once, about every DeviceClass for which pods that name memory or cores are refused here."""
        resource, told, problem = self._kubelet.resource_name, frozenset[str](), ""
        while not self._settings.node_totals:
            try:
                found = hazardous(await device_classes(self._api), resource, self._settings.total_names)
                for name in sorted(set(found) - told):
                    self._events.record(self._own.reference(), untotalled(name, resource))
                told, problem = frozenset(found), ""
            except (ApiError, ApiUnreachable) as error:
                if str(error) != problem:
                    problem = str(error)
                    log.warning("cannot read whether a DeviceClass keeps pods off this node: %s", problem)
            await asyncio.sleep(_CLASSES_SECONDS)

    async def _serve(self) -> None:
        """Registers a resource with kubelet once there is a GPU of it."""
        async with asyncio.TaskGroup() as group:
            async for found in self._changes.of(self._resources):
                for resource in sorted(found - self._plugins.keys()):
                    self._plugins[resource] = self._plugin(resource)
                    group.create_task(self._plugins[resource].run())

    def _resources(self) -> frozenset[str]:
        inventory = self._gpus.inventory
        if self._mode is None:
            return frozenset()
        shared = {self._kubelet.resource_name} if inventory.devices else set[str]()
        return frozenset(shared | inventory.instances.keys())

    def _plugin(self, resource: str) -> PluginServer:
        allocator, strategy = self._allocator(resource)
        guarded: Allocator = allocator
        by_files = DeviceListStrategy.DRIVER_FILES in self._allocation.strategies
        if self._driver_root is not None and by_files and allocator is not self._slots:
            guarded = DriverGuard(allocator, self._driver_root, self._read_checkpoint)
        return PluginServer(
            replace(self._kubelet, resource_name=resource),
            MeasuredAllocator(guarded, self._metrics, strategy),
            restarted=self._served_pods.kubelet_restarted if allocator is self._immediate else lambda: None,
            told=lambda taken: self._metrics.registered(_outcome(taken)),
        )

    def _allocator(self, resource: str) -> tuple[Allocator, str]:
        if resource != self._kubelet.resource_name:
            return InstanceAllocator(self._gpus, self._changes, resource, self._allocation), "instance"
        if self._mode is AllocationMode.SLOTS:
            return self._slots, AllocationMode.SLOTS
        return self._immediate, AllocationMode.IMMEDIATE

    async def _allocate(self) -> None:
        """Chooses how to allocate; until then nothing is reported or served."""
        memory = await self._memory_thread.call(self._memory_file.read)
        boot = await self._memory_thread.call(self._memory_file.boot)
        chosen = await choose_allocation(
            self._own,
            self._changes,
            self._settings,
            self._slot_files,
            self._pod_resources,
            recall=lambda: self._recalled(memory, boot),
        )
        self._mode = chosen.mode
        log.info("%s", chosen.sentence)
        if chosen.memory is not None:
            known = f"{len(chosen.memory.pods)} pods are remembered, others are refused"
            log.warning(
                "the API server is unreachable: until it answers, the state of this node's last daemon is used; %s",
                known,
            )
            self._own.recall(chosen.memory.pods)
        self._changes.announce()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._slots.run() if self._mode is AllocationMode.SLOTS else self._catch_up())
            if chosen.memory is not None:
                group.create_task(confirm(self._own, self._changes, self._settings, chosen, chosen.memory))

    def _recalled(self, memory: Memory | None, boot: str) -> Memory | None:
        """Returns the memory; None before the GPUs are known, and if it is of another node or time."""
        gpus = self._gpus.inventory.physical
        if memory is None or not gpus:
            return None
        problem = why_foreign(memory, self._own.name, boot, gpus)
        if problem and problem != self._memory_problem:
            self._memory_problem = problem
            log.warning("%s %s; it is not used", self._memory_file.path, problem)
        return None if problem else memory

    async def _remember(self) -> None:
        """Writes what the next daemon needs if the API server is unreachable."""
        boot = await self._memory_thread.call(self._memory_file.boot)
        written: Memory | None = None
        reduced = ByPod[None, Pod | None](lambda pod, _: memorable(pod))
        while True:
            change = self._changes.next()
            gpus = self._gpus.inventory.physical
            if self._own.node is not None and self._mode is not None and self._own.pods_known and gpus:
                memory = memory_of(self._own.node, boot, self._mode, gpus, reduced.of(self._own.pods, None))
                if memory != written:
                    is_written = await self._memory_thread.call(partial(self._memory_file.write, memory))
                    written = memory if is_written else None
                    await asyncio.sleep(_MEMORY_SECONDS)
            await change.wait()

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

    async def _announce(self) -> None:
        told = Inventory()
        async for inventory in self._changes.of(lambda: self._gpus.inventory):
            for notice in notices(told, inventory):
                self._events.record(self._own.reference(), notice)
            told = inventory

    async def _announce_labels(self) -> None:
        async for others in self._changes.of(lambda: self._labels.others(self._own.node)):
            if others:
                self._events.record(self._own.reference(), left_to_others(others))

    async def _announce_limits(self) -> None:
        told: NodeLimits | None = None
        async for limits in self._changes.of(lambda: self._hook.limits):
            notice = unlimited(told, limits)
            if notice is not None:
                self._events.record(self._own.reference(), notice)
            told = limits


def _outcome(taken: bool) -> Outcome:
    return Outcome.OK if taken else Outcome.FAILED
