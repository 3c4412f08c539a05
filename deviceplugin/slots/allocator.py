"""Strategy `slots`: Allocate answers with a name; PreStartContainer proves the container and writes the name's spec.

It writes nothing on pods or nodes and need not remember anything: kubelet knows it all, and calls PreStartContainer
before every start and restart of a container. The spec is needed from then until the container is created.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from deviceplugin.allocation.decision import SecondCount, decided_devices, gpus_requested
from deviceplugin.allocation.sources import AllocationSources
from deviceplugin.allocation.starts import Starts
from deviceplugin.container.cdi_files import CannotWriteSpec
from deviceplugin.container.edits import (
    ContainerEdits,
)
from deviceplugin.container.hami_core import CannotLimit
from deviceplugin.limits.driver import DriverLimits
from deviceplugin.records.holdings import ListedContainer, Witness, witness_reader
from deviceplugin.records.pod_resources import PodResources, PodResourcesUnavailable
from deviceplugin.replicas import preferred_replicas
from deviceplugin.slots.files import SlotFiles
from deviceplugin.slots.preparation import SlotPreparation
from deviceplugin.slots.promises import Promises
from deviceplugin.slots.proof import Evidence, ProvenPod, Unproven, prove_slot
from deviceplugin.slots.slot import Start, named
from deviceplugin.slots.specs import SlotSpecs
from proto.annotations.errors import AnnotationError
from proto.annotations.keys import DEVICES_ALLOCATED
from proto.devices import ContainerShares, Device, DeviceUUID, PodShares
from proto.kubernetes.errors import ApiError, ApiUnreachable
from proto.kubernetes.objects import Pod


def shares_in_turn(pods: Sequence[Pod], served: Witness, ids: int, resource: str) -> ContainerShares | None:
    """Finds the container whose turn it is when kubelet calls GetPreferredAllocation, which does not name it.

    Kubelet admits pods one after the other, in the order in which they were bound, and writes its checkpoint after each
    container. So it is the turn of the first pod, beginning with the last one in the checkpoint, whose next container
    needs this many ids; a pod before it was refused. A kubelet that has just started admits pods in another order, and
    the answer may be for another pod. That affects only kubelet's records: this gives out no GPU.
    Source: pkg/kubelet/kubelet.go (HandlePodAdditions) and pkg/kubelet/cm/devicemanager of Kubernetes.

    Returns the shares decided for the container that waits for `ids` GPUs; empty if nothing readable was. None if no
    pod waits for so many. `pods` are those of the node, in the order in which they were bound.
    """
    reached = max((at for at, pod in enumerate(pods) if pod.metadata.uid in served), default=0)
    for pod in (*pods[reached:], *pods[:reached]):
        if not pod.is_pending:
            continue
        names = served.get(pod.metadata.uid, frozenset())
        waiting = (
            (requested, held)
            for container, requested, held in _requests(pod, resource)
            if requested and container not in names
        )
        requested, held = next(waiting, (0, ()))
        if requested == ids:
            return held
    return None


def _requests(pod: Pod, resource: str) -> list[tuple[str, int, ContainerShares]]:
    """Returns for each container its name, the number of GPUs that kubelet calls for, and the decided shares."""
    containers = pod.all_containers
    try:
        decided: PodShares = decided_devices(pod, DEVICES_ALLOCATED, resource)
    except AnnotationError:
        return [(each.name, gpus_requested(each, resource), ()) for each in containers]
    return [(each.name, len(held), held) for each, held in zip(containers, decided, strict=True)]


log = logging.getLogger(__name__)

_LAST_LOOK_SECONDS = 3.0
"""Seconds that one request to pod-resources may still take after the deadline."""
_FOLDERS_AT_ONCE = 3
"""Threads of the pool that all share, of which there are five at least: a disk that hangs keeps them."""
_FIRST_LOOK_SECONDS = 0.05
_SLOWEST_LOOK_SECONDS = 1.0
_NAME_BYTES = 16


class SlotAllocator:
    """Answers for the GPUs that pods share. `monotonic` is the clock for removing specs; `draw` makes slot names."""

    pre_start_required = True

    def __init__(
        self,
        sources: AllocationSources,
        files: SlotFiles,
        pod_resources: PodResources,
        driver: DriverLimits,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        draw: Callable[[], str] = lambda: secrets.token_hex(_NAME_BYTES),
        pause_seconds: float | None = None,
    ) -> None:
        self._own = own = sources.own
        self._gpus = sources.gpus
        self._changes = sources.changes
        self._pod_resources = pod_resources
        self._driver = driver
        self._preparation = SlotPreparation(sources, files, driver)
        self._settings = sources.settings
        self._resource = resource = sources.resource
        self._read_checkpoint = sources.read_checkpoint
        self._witness = witness_reader(sources.read_checkpoint, resource)
        self._count = SecondCount(resource)
        self._monotonic = monotonic
        self._draw = draw
        pause = {} if pause_seconds is None else {"pause_seconds": pause_seconds}
        self.specs = SlotSpecs(files, lambda: own.pods, monotonic=monotonic, **pause)
        self._folders = asyncio.Semaphore(_FOLDERS_AT_ONCE)
        self._promises = Promises()
        self._named_slots: dict[frozenset[str], str] = {}
        """The last answer for these ids, unless a later answer has one of them."""
        self._starts = Starts()

    def devices(self) -> Sequence[Device]:
        """Returns the GPUs as they are now."""
        return self._gpus.inventory.devices

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """Returns ids on the GPUs decided for the container whose turn it is; empty if none is found in time.

        It is a hint for kubelet's records: whatever ids kubelet takes, the container gets the GPUs decided for it.
        """
        deadline = asyncio.get_running_loop().time() + self._settings.prefer_seconds
        while True:
            change = self._changes.next()
            served = await self._witness() or {}
            shares = shares_in_turn(tuple(self._own.pods.values()), served, size, self._resource)
            if shares is not None:
                return preferred_replicas([share.uuid for share in shares], available, must_include, size)
            try:
                # Kubelet may see the pod first.
                async with asyncio.timeout_at(deadline):
                    await change.wait()
            except TimeoutError:
                return ()

    async def allocate(self, ids: Sequence[str]) -> ContainerEdits:
        """Returns the name of a new slot, without waiting."""
        held, slot = frozenset(ids), self._draw()
        self._named_slots = {each: name for each, name in self._named_slots.items() if not each & held} | {held: slot}
        return named(slot)

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Writes the slot's spec for the container that holds these ids. Raises CannotAllocate."""
        deadline = asyncio.get_running_loop().time() + self._settings.pre_start_seconds
        await self._starts.run(ids, partial(self._start, frozenset(ids), deadline), deadline + _LAST_LOOK_SECONDS)

    async def run(self) -> None:
        """Removes specs that are no longer needed, and notes which pods have begun, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.specs.run())
            group.create_task(self._note())

    async def _note(self) -> None:
        while True:
            change = self._changes.next()
            self._promises.note(self._own.pods)
            await change.wait()

    async def end(self) -> None:
        """Ends its tasks; no container starts after this."""
        await self._starts.end()
        await self.specs.end()

    async def _start(self, ids: frozenset[str], deadline: float) -> str:
        """Writes the spec; returns why that failed, or an empty text."""
        answer = await self._find(ids, deadline)
        if isinstance(answer, Unproven):
            return answer.sentence + (f" ({self._own.problem})" if self._own.problem else "")
        # The promise begins before anything is awaited, because the next call counts it.
        self._promises.begin(answer.pod)
        # A daemon that starts does not know yet what holds parts, and a container must not lose what held it.
        try:
            async with asyncio.timeout_at(deadline):
                await self._driver.is_known.wait()
        except TimeoutError:
            return f"pod {answer.pod.full_name}: the driver has not answered yet whether it limits GPU memory"
        try:
            recorded = await self._read_checkpoint() or ()
            sizes = self._preparation.sizes(answer)
            async with self._folders:
                prepared = await asyncio.to_thread(self._preparation.of, recorded, ids, answer, sizes)
            if self._preparation.sizes(answer) != sizes:
                return f"pod {answer.pod.full_name}: its GPU memory changes at this moment"
            for each in prepared.values():
                self._driver.expect(answer.pod.metadata.uid, each.container, each.driver_mib)
            await self.specs.put({slot: each.spec for slot, each in prepared.items()}, self._begun(answer))
        except (CannotLimit, CannotWriteSpec, OSError) as error:
            return f"pod {answer.pod.full_name}: {error}"
        for slot in answer.slots:
            name = answer.pod.all_containers[slot.position].name
            gpus = ", ".join(sorted(share.uuid for share in slot.shares))
            if slot.problem:
                log.warning("%s; it cannot start again", slot.problem)
            else:
                log.info("pod %s, container %s: served %s", answer.pod.full_name, name, gpus)
        return ""

    async def _find(self, ids: frozenset[str], deadline: float) -> ProvenPod | Unproven:
        """Finds the container that holds the ids; until the deadline, kubelet and the API server may still provide
        proof.
        """
        pause, read, direct = _FIRST_LOOK_SECONDS, False, None
        while True:
            change = self._changes.next()
            answer = await self._prove(ids, direct)
            if isinstance(answer, ProvenPod) or not answer.may_change:
                return answer
            if answer.unknown and not read:
                read, direct = True, await self._read(answer.unknown, deadline)
                continue
            now = asyncio.get_running_loop().time()
            if now >= deadline:
                return answer
            try:
                async with asyncio.timeout_at(min(deadline, now + pause)):
                    await change.wait()
            except TimeoutError:
                pause = min(2 * pause, _SLOWEST_LOOK_SECONDS)

    async def _prove(self, ids: frozenset[str], direct: Pod | None = None) -> ProvenPod | Unproven:
        """Looks for a proof. `direct` is a pod that was read because the watch was not enough."""
        listed: tuple[ListedContainer, ...] | None = None
        problem = ""
        try:
            listed = await self._pod_resources.listed()
        except PodResourcesUnavailable as error:
            problem = str(error)
        recorded = await self._read_checkpoint()
        pods = self._own.pods if direct is None else {direct.metadata.uid: direct, **self._own.pods}
        evidence = Evidence(
            node=self._own.name,
            resource=self._resource,
            pods=tuple(pods.values()),
            read=direct,
            inventory=self._gpus.by_uuid(),
            problems=self._gpus.inventory.problems,
            listed=listed,
            recorded=recorded,
            problem=problem,
            named_slot=self._named_slots.get(ids, ""),
        )
        self._promises.note(self._own.pods)
        answer, offered, given = prove_slot(ids, evidence), evidence.inventory, self._gpus.kept_by_uuid()
        problem = self._exceeded(answer.pod, offered) if isinstance(answer, ProvenPod) else ""
        fits = isinstance(answer, ProvenPod) and not problem and not any(slot.problem for slot in answer.slots)
        if fits or (isinstance(answer, Unproven) and given == offered):
            return answer
        kept = prove_slot(ids, replace(evidence, inventory=given))
        if isinstance(kept, ProvenPod) and self._promises.is_kept(kept.pod):
            return replace(kept, is_kept=True)
        return Unproven(problem, may_change=True) if problem else answer

    def _exceeded(self, pod: Pod, offered: Mapping[DeviceUUID, Device]) -> str:
        """Returns why the pod does not fit beside the others into what the node offers; empty if it does."""
        problem = self._count.exceeded(pod, self._own.pods, offered, self._promises)
        return f"pod {pod.full_name}: {problem}" if problem else ""

    async def _read(self, name: str, deadline: float) -> Pod | None:
        try:
            async with asyncio.timeout_at(deadline):
                return await self._own.read_pod(*name.split("/"))
        except (ApiError, ApiUnreachable, TimeoutError) as error:
            log.warning("pod %s could not be read: %s", name, error or "no answer in time")
            return None

    def _begun(self, proven: ProvenPod) -> Mapping[str, Start]:
        """Returns starts by slot."""
        uid, now = proven.pod.metadata.uid, self._monotonic()
        names = {slot.name: proven.pod.all_containers[slot.position].name for slot in proven.slots}
        known = self._own.pods.get(uid, proven.pod)
        return {
            slot: Start(pod_uid=uid, container=name, known_id=known.container_id(name), since=now)
            for slot, name in names.items()
        }
