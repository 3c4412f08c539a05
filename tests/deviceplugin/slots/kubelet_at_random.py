"""Kubelet's half of the node at random.

What it does is taken from pkg/kubelet/cm/devicemanager of Kubernetes: admission one pod after the other, init
containers' ids used again, ids of ended pods given back no earlier than the next admission, the checkpoint written
after every Allocate.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, TypeVar

from deviceplugin.changes import Changes
from deviceplugin.plugin_calls import CannotAllocate
from deviceplugin.records.holdings import Holding, ListedContainer
from proto.kubernetes.objects import Container
from simulation.kubelet.device_ids import choices, containers_in_order, settle
from tests.deviceplugin.slots.one_thread import Process
from tests.deviceplugin.slots.pods_at_random import ADVERTISED, GPU, Bound, Entry
from tests.deviceplugin.slots.slot_rig import as_recorded

if TYPE_CHECKING:
    from tests.deviceplugin.slots.node_at_random import NodeAtRandom

T = TypeVar("T")


class Kubelet:
    """`held` is its memory, `recorded` its checkpoint file."""

    def __init__(self, node: "NodeAtRandom") -> None:
        self._node = node
        self.process = Process()
        self.held: tuple[Entry, ...] = ()
        self.recorded: tuple[Entry, ...] = ()
        self.allocations = 0
        self._over: set[str] = set()
        """Pods whose ids may be given back."""
        self._workers: dict[str, Changes] = {}
        self._answers: deque[tuple[ListedContainer, ...]] = deque([()], maxlen=6)

    def start(self) -> None:
        """Also after a crash: what it knows is its checkpoint; running containers went on without it."""
        self.process, self.held, self._over, self._workers = Process(), self.recorded, set(), {}
        self.process.live(self._admissions())

    async def read_checkpoint(self) -> tuple[Holding, ...] | None:
        if "checkpoint" in self._node.faults:
            return None
        return tuple(
            Holding(
                pod_uid=e.uid,
                container_name=e.container,
                resource_name=GPU,
                device_ids={"-1": [*e.ids]},
                answer=as_recorded(e.slot),
            )
            for e in self.recorded
        )

    def listing(self) -> tuple[ListedContainer, ...] | None:
        """None while nobody answers. It lags and lacks pods; without checkpoint it lacks pods only, because then it is
        kubelet's only word, and its word is what kubelet knows.
        """
        faults, random = self._node.faults, self._node.random
        if "pod-resources" in faults or not self.process.tasks:
            return None
        answer = self._listed()
        if "checkpoint" not in faults and random.random() < 0.3:
            answer = random.choice(self._answers)
        if random.random() < 0.1:
            answer = answer[: random.randrange(len(answer) + 1)]
        return answer

    def tell(self, uid: str) -> None:
        """Something of this pod is to be done."""
        if uid in self._workers:
            self._workers[uid].announce()

    def _listed(self) -> tuple[ListedContainer, ...]:
        found = []
        for entry in self.held:
            bound = self._node.api.pods.get(entry.uid)
            if bound is not None:
                pod = bound.pod
                ordinary = {each.name for each in pod.spec.init_containers if not each.is_sidecar}
                if entry.container not in ordinary:
                    listed = ListedContainer(
                        namespace="default", pod=pod.metadata.name, container=entry.container, ids=frozenset(entry.ids)
                    )
                    found.append(listed)
        return tuple(found)

    def _remember(self, held: tuple[Entry, ...]) -> None:
        self.held = held
        self._answers.append(self._listed())

    async def _admissions(self) -> None:
        """Whichever comes next; their workers go on beside."""
        while True:
            following = self._node.api.changes.next()
            waiting = sorted(self._node.api.pods.keys() - self._workers.keys())
            if not waiting:
                await following.wait()
                continue
            await self._node.loop.turn()
            uid = self._node.random.choice(waiting)
            bound = self._node.api.pods.get(uid)
            if bound is None:
                continue
            self._workers[uid] = Changes()
            if bound.pod.metadata.deletion_timestamp is None and not bound.ended and not await self._admit(bound):
                self._over.add(uid)
                self._node.api.change(uid, phase="Failed")
            self.process.live(self._work(uid))

    async def _admit(self, bound: Bound) -> bool:
        """False when kubelet refuses the pod, as it does for good when the plugin does not answer."""
        pod, uid = bound.pod, bound.pod.metadata.uid
        self._remember(tuple(entry for entry in self.held if self._is_active(entry.uid)))
        reusable: set[str] = set()
        for container, gives_back in containers_in_order(pod):
            wanted = int(container.resources.limits.get(GPU, "0"))
            entry = self.entry(uid, container.name)
            if wanted and entry is None:
                entry = await self._allocate(uid, container, wanted, reusable)
                if entry is None:
                    return False
            if entry is not None:
                reusable.update(entry.ids) if gives_back else reusable.difference_update(entry.ids)
        return True

    async def _allocate(self, uid: str, container: Container, wanted: int, reusable: set[str]) -> Entry | None:
        in_use = {identifier for entry in self.held for identifier in entry.ids}
        choice = choices(GPU, ADVERTISED, in_use, reusable, wanted)
        wished = list(choice.available)
        self._node.random.shuffle(wished)
        if self._node.random.random() < 0.3:
            answer = await self._ask(self._node.daemon.allocator.prefer(choice.available, choice.kept, wanted))
            wished = [*(answer or ()), *wished]
        ids = settle(choice, wished)
        edits = await self._ask(self._node.daemon.allocator.allocate(ids))
        if edits is None:
            return None
        (named,) = edits.cdi_devices
        await self._node.loop.turn()
        entry = Entry(uid, container.name, ids, named.partition("=")[2])
        self.allocations += 1
        self._remember((*self.held, entry))
        self.recorded = self.held
        return entry

    def _is_active(self, uid: str) -> bool:
        bound = self._node.api.pods.get(uid)
        return bound is not None and not bound.ended and uid not in self._over

    def entry(self, uid: str, container: str) -> Entry | None:
        return next((entry for entry in self.held if (entry.uid, entry.container) == (uid, container)), None)

    async def _ask(self, call: Coroutine[object, object, T]) -> T | None:
        """A call that is answered; None when the daemon dies over it. Raises CannotAllocate."""
        asked = self._node.daemon.process.run(call)
        await self._node.loop.turn()
        await asyncio.wait([asked])
        return None if asked.cancelled() else asked.result()

    async def _work(self, uid: str) -> None:
        """One pod from its admission to its end; containers one after the other."""
        while True:
            following = self._workers[uid].next()
            bound = self._node.api.pods[uid]
            if bound.pod.metadata.deletion_timestamp is not None or bound.ended:
                await self._node.loop.turn()
                self._node.stop(uid)
                self._over.add(uid)
                if self._node.api.pods[uid].pod.metadata.deletion_timestamp is not None:
                    await self._node.loop.turn()
                    self._node.api.put(uid, None)
                    del self._workers[uid]
                    return
            elif (container := self._node.next_container(bound.pod)) is not None:
                await self._start(bound, container, following)
                continue
            elif bound.pod.status.phase == "Pending":
                self._node.api.change(uid, phase="Running")
                continue
            await following.wait()

    async def _start(self, bound: Bound, container: Container, following: asyncio.Event) -> None:
        """To be tried again when it fails."""
        node, uid = self._node, bound.pod.metadata.uid
        entry = self.entry(uid, container.name)
        if (uid, container.name) not in node.live:
            if entry is not None and not await self._pre_start(entry, following):
                node.refused += 1
                await node.loop.turn()
                return
            await node.loop.turn()
            if not node.create(bound, container, entry):
                return
        if not container.is_sidecar and container in bound.pod.spec.init_containers:
            await node.loop.turn()
            if (uid, container.name) in node.live:
                node.end(uid, container.name)

    async def _pre_start(self, entry: Entry, following: asyncio.Event) -> bool:
        """A pod's end may come in between: then kubelet waits no longer, or it does."""
        call = self._node.daemon.process.run(self._node.daemon.allocator.pre_start(entry.ids))
        interrupted = asyncio.ensure_future(following.wait())
        await asyncio.wait([call, interrupted], return_when=asyncio.FIRST_COMPLETED)
        interrupted.cancel()
        if not call.done() and self._node.random.random() < 0.5:
            call.cancel()
        await asyncio.wait([call])
        if call.cancelled():
            return False
        error = call.exception()
        if error is not None and not isinstance(error, CannotAllocate):
            raise error
        return error is None
