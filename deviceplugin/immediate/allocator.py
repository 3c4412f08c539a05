"""Strategy `immediate`: answers kubelet's calls from the annotation of the pod that they are proven to be for."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from deviceplugin.allocation.decision import SecondCount, has_begun
from deviceplugin.allocation.kept_answers import DriverFilesCheck, answers_to, why_unlimited
from deviceplugin.allocation.sources import AllocationSources
from deviceplugin.allocation.starts import Starts
from deviceplugin.container.edits import (
    ContainerEdits,
    ContainerFacts,
    container_facts,
)
from deviceplugin.container.hami_core import CannotLimit, prepare, prepared_edits
from deviceplugin.container.limits import is_limited
from deviceplugin.container.own_variables import outdone
from deviceplugin.immediate.proof import NodeView, NoneProven, ProvenContainer, prove
from deviceplugin.immediate.served_pods import ServedPods
from deviceplugin.own_threads import OwnThreads
from deviceplugin.plugin_calls import CannotAllocate
from deviceplugin.records.holdings import Holding, Witness, witness_reader
from deviceplugin.replicas import preferred_replicas, split_replica
from proto.devices import Device, DeviceUUID
from proto.kubernetes.objects import Pod

log = logging.getLogger(__name__)

_FOLDERS_AT_ONCE = 8
"""A disk that hangs keeps a thread for each."""


class ImmediateAllocator:
    """Answers for the GPUs that pods share."""

    pre_start_required = True

    def __init__(
        self, sources: AllocationSources, served_pods: ServedPods, driver_files: DriverFilesCheck | None = None
    ) -> None:
        self._own = sources.own
        self._gpus = sources.gpus
        self._served_pods = served_pods
        self._driver_files = driver_files
        self._changes = sources.changes
        self._settings = sources.settings
        self._allocation = sources.containers
        self._resource_priority = sources.resource_priority
        self._resource = resource = sources.resource
        self._read_checkpoint = sources.read_checkpoint
        self._witness = witness_reader(sources.read_checkpoint, resource)
        self._count = SecondCount(resource)
        self._threads = OwnThreads("folders", _FOLDERS_AT_ONCE)
        self._starts = Starts()

    def devices(self) -> Sequence[Device]:
        """Returns the GPUs as they are now."""
        return self._gpus.inventory.devices

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """Returns ids on the GPUs decided for the container of the call; empty if none can be proven in time."""
        answer = await self._find(size, _deadline(self._settings.prefer_seconds))
        if isinstance(answer, NoneProven):
            return ()
        return preferred_replicas([share.uuid for share in answer.shares], available, must_include, size)

    async def allocate(self, ids: Sequence[str]) -> ContainerEdits:
        """Raises CannotAllocate, at the latest when the time for one Allocate is over."""
        deadline = _deadline(self._settings.allocate_seconds)
        answer = await self._find(len(ids), deadline)
        if isinstance(answer, NoneProven):
            if answer.pod is not None:
                self._served_pods.refuse(answer.pod)
            raise CannotAllocate(self._explain(answer.sentence))
        self._served_pods.claim(answer)
        edits = await self._edits(answer, deadline)
        self._served_pods.serve(answer)
        self._log_served(answer, ids)
        return edits

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Prepares the start of a container again, because its Allocate may be long ago. Raises CannotAllocate."""
        if self._driver_files is not None:
            await self._driver_files.check(ids)
        await self._starts.run(ids, partial(self._start, ids))

    async def end(self) -> None:
        """Ends its tasks; no container starts after this."""
        await self._starts.end()

    async def _start(self, ids: Sequence[str]) -> str:
        known = await self._read_checkpoint() or (), self._own.pods, self._gpus.with_own_memory(self._gpus.by_uuid())
        return await self._threads.call(partial(self._ready, ids, *known))

    def _ready(
        self,
        ids: Sequence[str],
        holdings: Sequence[Holding],
        pods: Mapping[str, Pod],
        inventory: Mapping[DeviceUUID, Device],
    ) -> str:
        """Checks what Allocate answered for these ids, and makes the container's folders new. Returns why the container
        must not start, or an empty text. Blocks.
        """
        settings, resource = self._settings, self._resource
        sentence = why_unlimited(ids, holdings, pods, inventory, settings=settings, resource=resource)
        if sentence:
            return sentence
        try:
            # An init container may have had the same ids; it has ended.
            for each in answers_to(ids, holdings, resource):
                container = ContainerFacts(pod_uid=each.pod_uid, name=each.container_name)
                prepare(settings.hook_path, container, each.env, each.mounts.values())
        except CannotLimit as error:
            return str(error)
        return ""

    async def _find(self, ids: int, deadline: float) -> ProvenContainer | NoneProven:
        """Finds the container of the call. Until the deadline the watch may bring its pod; then it looks no more."""
        while True:
            change = self._changes.next()
            answer = self._prove(ids, await self._witness())
            if isinstance(answer, ProvenContainer) or not answer.may_change:
                return answer
            try:
                async with asyncio.timeout_at(deadline):
                    await change.wait()
            except TimeoutError:
                return answer

    def _prove(self, ids: int, recorded: Witness | None) -> ProvenContainer | NoneProven:
        if not self._own.pods_known:
            return NoneProven(f"the pods of node {self._own.name} are not known yet", may_change=True)
        view = NodeView(
            name=self._own.name,
            resource=self._resource,
            pods=tuple(self._own.pods.values()),
            lock=self._own.lock(),
            lock_uid=self._own.lock_uid(),
            inventory=self._gpus.by_uuid(),
            problems=self._gpus.inventory.problems,
            remembered=self._served_pods.served,
            recorded=recorded,
        )
        answer = self._fitting(view, ids)
        if isinstance(answer, ProvenContainer):
            return answer
        kept = prove(replace(view, inventory=self._gpus.kept_by_uuid()), ids)
        if isinstance(kept, ProvenContainer) and (kept.served or has_begun(kept.pod)):
            return replace(kept, is_kept=True)
        return answer

    def _fitting(self, view: NodeView, ids: int) -> ProvenContainer | NoneProven:
        """Finds the container, if its pod fits beside the others into what the node offers."""
        answer = prove(view, ids)
        if isinstance(answer, NoneProven):
            return answer
        served = {*self._served_pods.served, *(view.recorded or ())}
        problem = self._count.exceeded(answer.pod, self._own.pods, view.inventory, served)
        return (
            NoneProven(f"pod {answer.pod.full_name}: {problem}", may_change=True, pod=answer.pod) if problem else answer
        )

    async def _edits(self, proven: ProvenContainer, deadline: float) -> ContainerEdits:
        container = proven.pod.all_containers[proven.container]
        facts = container_facts(proven.pod.metadata.uid, container, self._resource_priority)
        known = self._gpus.kept_by_uuid() if proven.is_kept else self._gpus.by_uuid()
        hardware, settings = self._gpus.inventory.hardware, self._settings
        prepared = partial(
            prepared_edits,
            *(proven.shares, known, facts, self._allocation, hardware),
            node=settings,
        )
        try:
            # The folders are on the host's disks, which may hang; kubelet needs an answer.
            async with asyncio.timeout_at(deadline):
                edits = await self._threads.call(prepared)
        except (CannotLimit, TimeoutError) as error:
            problem = str(error) or f"the folders of HAMi-core were not made in {settings.allocate_seconds:g} s"
            self._served_pods.refuse(proven.pod)
            raise CannotAllocate(f"pod {proven.pod.full_name}: {problem}") from error
        limited = not settings.allows_unheld and is_limited(proven.shares, known)
        problem = outdone(container.name, container.env, edits.env, limited=limited)
        if problem:
            self._served_pods.refuse(proven.pod)
            raise CannotAllocate(self._explain(f"pod {proven.pod.full_name}: {problem}"))
        return edits

    def _explain(self, sentence: str) -> str:
        stale = f" ({self._own.problem})" if self._own.problem else ""
        log.warning("Allocate refused: %s%s", sentence, stale)
        return sentence + stale

    def _log_served(self, proven: ProvenContainer, ids: Sequence[str]) -> None:
        name, gpus = proven.pod.full_name, sorted(share.uuid for share in proven.shares)
        container = proven.pod.all_containers[proven.container].name
        log.info("pod %s, container %s: served %s", name, container, ", ".join(gpus))
        if sorted(split_replica(identifier)[0] for identifier in ids) != gpus:
            log.warning("pod %s, container %s: kubelet chose other GPUs than decided", name, container)


def _deadline(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds
