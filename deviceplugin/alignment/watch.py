"""Follows how kubelet aligns CPUs and GPUs on this node, and gives it hints (edge)."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from deviceplugin.alignment.kubelet_configuration import KubeletAlignment
from deviceplugin.alignment.kubelet_file import KubeletFiles
from deviceplugin.alignment.notices import apart, refused
from deviceplugin.alignment.zones import (
    Leading,
    closed_zones,
    held_zones,
    is_served,
    next_leading,
    node_numa,
    shown_numa,
)
from deviceplugin.allocation.decision import Holds, decided_devices, live_holds, lives
from deviceplugin.allocation.sources import AllocationSources
from deviceplugin.host_paths import seen, sysfs
from deviceplugin.nvml.sysfs import Sysfs
from deviceplugin.own_threads import OwnThreads
from deviceplugin.plugin_calls import NumaHints
from deviceplugin.records.holdings import ExclusiveCpus, Witness, witness_reader
from deviceplugin.records.pod_resources import PodResources, PodResourcesUnavailable
from proto.annotations.errors import AnnotationError
from proto.annotations.keys import DEVICES_ALLOCATED
from proto.annotations.node_numa import NodeNuma
from proto.devices import PodShares
from proto.kubernetes.objects import TOPOLOGY_AFFINITY_ERROR, Notice, ObjectReference, Pod

_LOOK_SECONDS = 10.0
"""Seconds between looks for what no watch shows: kubelet's file, CPUs of containers that have ended."""
_PAUSE_SECONDS = 0.5
"""Seconds between two looks however much changes: kubelet gives CPUs to a pod soon after the pod is seen."""


class AlignmentWatch:
    """`numa` is what the Node shows; None while kubelet's configuration is unknown."""

    def __init__(
        self, sources: AllocationSources, pod_resources: PodResources, record: Callable[[ObjectReference, Notice], None]
    ) -> None:
        """`record` gets the notices about pods whose CPUs and GPUs are apart."""
        settings = sources.configuration.kubelet
        host_root = sources.configuration.host.root
        self._sources = sources
        self._pod_resources = pod_resources
        paths = [Path(seen(host_root, path)) for path in settings.configuration.split(",") if path]
        self._files = KubeletFiles(*paths) if paths else None
        self._thread = OwnThreads("kubelet's configuration")
        self._always = settings.numa_hints
        self._cpus_of_zone = Sysfs(sysfs(host_root)).cpus_of_node()
        self._kubelet: KubeletAlignment | None = None
        self._cpus: ExclusiveCpus | None = None
        self._holds = live_holds(sources.resource)
        self._record = record
        self._noticed: Mapping[str, frozenset[str]] = {}
        """The containers, or kubelet's reason, for which each pod has its notice, by UID."""
        self._served = witness_reader(sources.read_checkpoint, sources.resource)
        self._leading = Leading()

    @property
    def numa(self) -> NodeNuma | None:
        if self._kubelet is None:
            return None
        return node_numa(self._kubelet, self._cpus_of_zone, self._cpus, self._leading)

    async def hints(self) -> NumaHints | None:
        """Returns the hints for kubelet; None if it gets none."""
        kubelet, own = self._kubelet, self._sources.own
        if not self._always and (kubelet is None or not kubelet.topology_manager_policy.aligns):
            return None
        recorded = await self._sources.read_checkpoint() or ()
        return NumaHints(
            zones=frozenset(zone for zone, cpus in self._cpus_of_zone.items() if cpus),
            closed=self._leading.closed,
            held=held_zones(recorded, own.pods if own.pods_known else None, self._sources.resource),
        )

    async def run(self) -> None:
        """Runs until cancelled."""
        shown = shown_numa(self._sources.own.node)
        closed = frozenset() if shown is None else frozenset(zone for zone, each in shown.zones.items() if each.closed)
        self._leading = Leading(closed, closed)
        while True:
            change = self._sources.changes.next()
            before = self._kubelet, self._cpus, self._leading
            self._kubelet = None if self._files is None else await self._thread.call(self._files.read)
            if self._kubelet is not None and self._kubelet.aligns:
                # The last answer counts until kubelet answers again.
                with suppress(PodResourcesUnavailable):
                    self._cpus = await self._pod_resources.cpus()
            self._lead(await self._served() or {})
            if (self._kubelet, self._cpus, self._leading) != before:
                self._sources.changes.announce()
            self._record_notices()
            await asyncio.sleep(_PAUSE_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(_PAUSE_SECONDS if self._leading.is_changing else _LOOK_SECONDS):
                    await change.wait()

    def _lead(self, served: Witness) -> None:
        """Takes the next step in closing and opening NUMA nodes to kubelet.

        Pods whose containers do not all have their replicas are on their way: they count nothing yet.
        """
        gpus, pods, resource = self._sources.gpus, self._sources.own.pods, self._sources.resource
        counted, is_settled = list[Holds](), True
        for pod, held in zip(pods.values(), self._holds.of(pods, gpus.by_uuid()), strict=True):
            if not held:
                continue
            if is_served(pod, _decided(pod, resource), served.get(pod.metadata.uid, ())):
                counted.append(held)
            elif pod.metadata.deletion_timestamp is None:
                is_settled = False
        free = frozenset[int]() if self._cpus is None else self._cpus.free
        free_cpus = {zone: len(free & cpus) for zone, cpus in self._cpus_of_zone.items()}
        numa = self.numa
        shows = numa is not None and bool(numa.zones)
        wanted = closed_zones(gpus.inventory.devices, counted, free_cpus) if shows else None
        shown = shown_numa(self._sources.own.node)
        self._leading = next_leading(
            self._leading,
            wanted,
            is_shown=shown is not None and shown.changing,
            is_settled=is_settled,
            now=asyncio.get_running_loop().time(),
        )

    def _record_notices(self) -> None:
        """Records a notice for each pod that kubelet refused or gave other CPUs, once."""
        gpus, resource = self._sources.gpus.by_uuid(), self._sources.resource
        zone_of_cpu = {cpu: zone for zone, cpus in self._cpus_of_zone.items() for cpu in cpus}
        of_ours = {} if self._cpus is None else self._cpus.of_ours
        noticed: dict[str, frozenset[str]] = {}
        for uid, pod in self._sources.own.pods.items():
            found: dict[str, Notice] = {}
            if pod.status.reason == TOPOLOGY_AFFINITY_ERROR:
                found[TOPOLOGY_AFFINITY_ERROR] = refused(self.numa)
            elif of_ours and lives(pod):
                for container, shares in zip(pod.all_containers, _decided(pod, resource), strict=False):
                    cpus = of_ours.get((pod.metadata.namespace, pod.metadata.name, container.name), ())
                    notice = apart(container.name, cpus, shares, zone_of_cpu, gpus)
                    if notice is not None:
                        found[container.name] = notice
            known = self._noticed.get(uid, frozenset())
            for subject in found.keys() - known:
                self._record(pod.reference, found[subject])
            if found or known:
                noticed[uid] = known | found.keys()
        self._noticed = noticed


def _decided(pod: Pod, resource: str) -> PodShares:
    """Returns the GPUs decided for each container; none that cannot be read."""
    try:
        return decided_devices(pod, DEVICES_ALLOCATED, resource)
    except AnnotationError:
        return ()
