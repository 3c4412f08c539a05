"""Strategy `slots` at work: Allocate answers with a name, PreStartContainer proves whose it is and writes its spec.

Nothing is written on pods or nodes, and nothing has to be remembered: whatever this process forgets, kubelet still
knows, and it asks PreStartContainer before every start of a container, also before every restart.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from weakref import WeakValueDictionary

from deviceplugin.allocation.checkpoint import Holding, witness
from deviceplugin.allocation.decided import containers_of, pod_name
from deviceplugin.allocation.identity import Evidence, Listed, ProvenSlot, Unproven, prove_slot
from deviceplugin.allocation.immediate import NodeView, Proven, prove
from deviceplugin.allocation.pod_resources import PodResources, PodResourcesUnavailable
from deviceplugin.allocation.slot_files import SlotFiles
from deviceplugin.allocation.slots import applied, named, slot_name, sweep
from deviceplugin.apiserver import OwnNode
from deviceplugin.container.cdi_files import CannotWriteSpec
from deviceplugin.container.edits import (
    AllocationSettings,
    ContainerEdits,
    ContainerFacts,
    container_edits,
    container_facts,
    is_limited,
)
from deviceplugin.container.hook import HookUnusable, find_hook, prepare
from deviceplugin.gpus import Gpus
from deviceplugin.kubelet import CannotAllocate
from deviceplugin.news import News
from deviceplugin.replicas import preferred_replicas
from deviceplugin.settings import AgentSettings
from proto.devices import Device
from proto.kubernetes.client import ApiError, ApiUnreachable
from proto.kubernetes.objects import Pod

log = logging.getLogger(__name__)

_LAST_LOOK_SECONDS = 3.0
"""After the deadline: as long as one question to pod-resources may still take."""
_FIRST_LOOK_SECONDS = 0.05
_SLOWEST_LOOK_SECONDS = 1.0
_SWEEP_SECONDS = 60.0
_GRACE_SECONDS = 180.0


class SlotAllocator:
    """Answers for the GPUs that pods share. `monotonic` is the clock of the sweep's grace."""

    pre_start_required = True

    def __init__(
        self,
        own: OwnNode,
        gpus: Gpus,
        news: News,
        files: SlotFiles,
        pod_resources: PodResources,
        *,
        settings: AgentSettings,
        allocation: AllocationSettings,
        resource: str,
        read_checkpoint: Callable[[], tuple[Holding, ...] | None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._own = own
        self._gpus = gpus
        self._news = news
        self._files = files
        self._pod_resources = pod_resources
        self._settings = settings
        # The device files too: a systemd or CPU manager that writes the cgroup again knows only those of the spec.
        self._allocation = replace(allocation, pass_device_specs=True)
        self._resource = resource
        self._read_checkpoint = read_checkpoint
        self._monotonic = monotonic
        self._unheld: dict[str, float] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._starting: set[asyncio.Task[str]] = set()

    def devices(self) -> AsyncGenerator[tuple[Device, ...], None]:
        """The GPUs now and after every change."""
        return self._news.changes(lambda: self._gpus.inventory.devices)

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """Ids on the GPUs decided for the only pod that can be asking; empty, at once, when there are several.

        A hint for kubelet's own books; whatever ids it takes, the container gets the GPUs decided for it.
        """
        holdings = self._read_checkpoint()
        view = NodeView(
            name=self._own.name,
            resource=self._resource,
            pods=tuple(self._own.pods.values()),
            lock=None,
            inventory=self._gpus.by_uuid(),
            recorded=None if holdings is None else witness(holdings, self._resource),
        )
        answer = prove(view, size)
        if not isinstance(answer, Proven):
            return ()
        return preferred_replicas([share.uuid for share in answer.shares], available, must_include, size)

    async def allocate(self, ids: Sequence[str]) -> ContainerEdits:
        """The name of the slot, at once."""
        return named(slot_name(ids))

    async def pre_start(self, ids: Sequence[str]) -> None:
        """The slot's spec is that of the container which holds these ids. Raises CannotAllocate."""
        deadline = asyncio.get_running_loop().time() + self._settings.pre_start_seconds
        starting = asyncio.create_task(self._start(frozenset(ids), deadline))
        self._starting.add(starting)
        starting.add_done_callback(self._starting.discard)
        try:
            # A thread that hangs on a disk cannot be ended: it keeps the slot's lock, so that what it writes in the
            # end does not replace the spec of the slot's next holder.
            async with asyncio.timeout_at(deadline + _LAST_LOOK_SECONDS):
                refusal = await asyncio.shield(starting)
        except TimeoutError:
            refusal = f"the files of slot {slot_name(ids)} were not written in time: a disk of this node hangs"
        if refusal:
            log.warning("PreStartContainer refused: %s", refusal)
            raise CannotAllocate(refusal)

    async def run(self) -> None:
        """Until cancelled: the specs that a reboot removed are written again, those that nobody needs are removed."""
        await self.rebuild()
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            await self.collect()

    async def rebuild(self) -> None:
        """Once pods and GPUs are known, the missing spec of every container that kubelet remembers."""
        async for known in self._news.changes(lambda: self._own.pods_known and bool(self._gpus.inventory.devices)):
            if known:
                break
        recorded = [entry.ids for entry in self._read_checkpoint() or () if entry.resource_name == self._resource]
        present = await asyncio.to_thread(self._files.slots)
        missing = [ids for ids in dict.fromkeys(recorded) if slot_name(ids) not in present]
        written = sum([await self._rebuild_one(ids) for ids in missing])
        if written:
            log.info("wrote the CDI specs of %d slots again", written)

    async def collect(self) -> None:
        """Remove what kubelet has given back a while ago, by its checkpoint as well as by pod-resources."""
        present = await asyncio.to_thread(self._files.slots)
        recorded = self._read_checkpoint()
        try:
            listed = await self._pod_resources.listed() if present else ()
        except PodResourcesUnavailable:
            return
        if recorded is None:
            return
        held = {slot_name(one.ids) for one in listed} | {slot_name(entry.ids) for entry in recorded}
        found = sweep(present, held, self._unheld, self._monotonic(), _GRACE_SECONDS)
        self._unheld = dict(found.unheld)
        for slot in sorted(found.stale):
            async with self._lock(slot):
                # A start meanwhile has taken it off the list.
                if self._unheld.pop(slot, None) is not None:
                    await asyncio.to_thread(self._remove, slot)

    async def _start(self, ids: frozenset[str], deadline: float) -> str:
        """Empty when the spec is written, else why it is not."""
        slot = slot_name(ids)
        async with self._lock(slot):
            answer = await self._find(ids, deadline)
            if isinstance(answer, Unproven):
                return answer.sentence + (f" ({self._own.problem})" if self._own.problem else "")
            self._unheld.pop(slot, None)
            try:
                await asyncio.to_thread(self._install, slot, answer, fresh=True)
            except (HookUnusable, CannotWriteSpec) as error:
                return f"pod {pod_name(answer.pod)}: {error}"
        names = " and ".join(containers_of(answer.pod)[position].name for position in answer.containers)
        gpus = ", ".join(sorted(share.uuid for share in answer.shares))
        log.info("pod %s, container %s: served %s", pod_name(answer.pod), names, gpus)
        return ""

    async def _find(self, ids: frozenset[str], deadline: float) -> ProvenSlot | Unproven:
        """Whoever holds the ids; until the deadline kubelet and the API server may still say so."""
        pause, read, direct = _FIRST_LOOK_SECONDS, False, None
        while True:
            news = self._news.next()
            answer = await self._prove(ids, direct)
            if isinstance(answer, ProvenSlot) or not answer.may_change:
                return answer
            if answer.unknown and not read:
                read, direct = True, await self._read(answer.unknown, deadline)
                continue
            now = asyncio.get_running_loop().time()
            if now >= deadline:
                return answer
            try:
                async with asyncio.timeout_at(min(deadline, now + pause)):
                    await news.wait()
            except TimeoutError:
                pause = min(2 * pause, _SLOWEST_LOOK_SECONDS)

    async def _prove(self, ids: frozenset[str], direct: Pod | None = None) -> ProvenSlot | Unproven:
        """`direct`: a pod that was read because the watch's word was not enough."""
        listed: tuple[Listed, ...] | None = None
        problem = ""
        try:
            listed = await self._pod_resources.listed()
        except PodResourcesUnavailable as error:
            problem = str(error)
        pods = self._own.pods if direct is None else {direct.metadata.uid: direct, **self._own.pods}
        evidence = Evidence(
            node=self._own.name,
            resource=self._resource,
            pods=tuple(pods.values()),
            read=direct,
            inventory=self._gpus.by_uuid(),
            listed=listed,
            recorded=self._read_checkpoint(),
            problem=problem,
        )
        return prove_slot(ids, evidence)

    async def _read(self, name: str, deadline: float) -> Pod | None:
        try:
            async with asyncio.timeout_at(deadline):
                return await self._own.read_pod(*name.split("/"))
        except (ApiError, ApiUnreachable, TimeoutError) as error:
            log.warning("pod %s could not be read: %s", name, error or "no answer in time")
            return None

    async def _rebuild_one(self, ids: frozenset[str]) -> bool:
        slot = slot_name(ids)
        async with self._lock(slot):
            answer = await self._prove(ids)
            if isinstance(answer, Unproven) or slot in await asyncio.to_thread(self._files.slots):
                return False
            try:
                await asyncio.to_thread(self._install, slot, answer, fresh=False)
            except CannotWriteSpec as error:
                log.warning("%s", error)
                return False
        return True

    def _install(self, slot: str, proven: ProvenSlot, *, fresh: bool) -> None:
        """Blocks. `fresh`: no container of the slot runs, so its folder is emptied. Raises HookUnusable or
        CannotWriteSpec.
        """
        facts = slot_facts(proven, self._allocation.priority_resource)
        hook = find_hook(self._settings.hook_path) if is_limited(proven.shares) else None
        if hook is not None and fresh:
            prepare(hook, facts)
        inventory = self._gpus.inventory
        known = {device.uuid: device for device in inventory.devices}
        edits = container_edits(proven.shares, known, facts, self._allocation, hook, hardware=inventory.hardware)
        self._files.write(slot, applied(edits))

    def _remove(self, slot: str) -> None:
        try:
            self._files.remove(slot)
        except OSError as error:
            log.warning("the CDI spec of slot %s, which nobody holds, cannot be removed: %s", slot, error.strerror)

    def _lock(self, slot: str) -> asyncio.Lock:
        return self._locks.setdefault(slot, asyncio.Lock())


def slot_facts(proven: ProvenSlot, priority_resource: str) -> ContainerFacts:
    """Of the slot's last container, whose folder all of them use one after the other: the others are ordinary init
    containers, which have ended when it starts. A variable counts as set only where each of them sets it.
    """
    containers = [containers_of(proven.pod)[position] for position in proven.containers]
    each = [container_facts(proven.pod.metadata.uid, container, priority_resource) for container in containers]
    common = {key: value for key, value in each[-1].env.items() if all(facts.env.get(key) == value for facts in each)}
    return ContainerFacts(pod_uid=each[-1].pod_uid, name=each[-1].name, env=common, priority=each[-1].priority)
