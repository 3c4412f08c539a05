"""Takes and releases node locks on the API server. The watch wakes a pod that waits for the one before."""

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import NamedTuple
from weakref import WeakValueDictionary

from proto.annotations.keys import NODE_LOCK, NODE_LOCK_UID
from proto.annotations.node_lock import encode_lock_uid
from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiError, ApiUnreachable, Conflict, NotFound
from proto.kubernetes.objects import NODES, PODS
from scheduler_ext.cluster.events import LockHeld, PodRead
from scheduler_ext.cluster.pod_index import NodeEntry, PodName, node_entry, pod_entry
from scheduler_ext.settings import ServeSettings
from scheduler_ext.verbs.live_cluster import LiveCluster
from scheduler_ext.verbs.lock_rules import is_held_by, lacks_devices, lock_to_write, owner_of
from scheduler_ext.verbs.state_machine import BindAttempt

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.2


class NodeUnknown(Exception):
    """There is no such node."""

    def __init__(self) -> None:
        super().__init__("there is no such node")


class LockBusy(Exception):
    """Another pod has the node, and the time to wait for it is over. The message is the reason."""


class _SeenLock(NamedTuple):
    value: str
    at: datetime


class NodeLocks:
    """The locks of all nodes, as one extender sees them."""

    def __init__(
        self, *, api: ApiServer, cluster: LiveCluster, settings: ServeSettings, now: Callable[[], datetime]
    ) -> None:
        self._api = api
        self._cluster = cluster
        self._settings = settings
        self._now = now
        self._ttl = timedelta(seconds=settings.node_lock_ttl_seconds)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._first_seen: dict[str, _SeenLock] = {}

    async def take_turn(self, node: str, why: str) -> Callable[[], None]:
        """Waits for a turn among the pods that are bound to the node from here. Returns what ends it. Raises LockBusy
        with the reason `why`.
        """
        turn, seconds = self._turns.setdefault(node, asyncio.Lock()), self._settings.lock_wait_seconds
        try:
            async with asyncio.timeout(seconds):
                await turn.acquire()
        except TimeoutError as error:
            raise LockBusy(f"{why}; waited {seconds:g} s") from error
        return turn.release

    async def take(self, attempt: BindAttempt, waiting: Callable[[str], None], *, give_up_at: datetime) -> None:
        """Waits until this pod has the node's lock; `waiting` gets each reason to wait. Until a lock that was given up
        changes or expires, other nodes are chosen before its own.

        Raises LockBusy, NodeUnknown, ApiError or ApiUnreachable.
        """
        node, pod = attempt.node, attempt.pod
        entry: NodeEntry | None = self._cluster.state.pods.node(node)
        while True:
            if entry is None:
                raise NodeUnknown
            changed = self._cluster.next_change(node, owner_of(entry.lock))
            waits, seen = await self._owner_waits(node, entry, pod), self._first_seen_at(node, entry.lock)
            verdict = lock_to_write(entry.lock, pod, owner_waits=waits, first_seen=seen, now=self._now(), ttl=self._ttl)
            if isinstance(verdict, str):
                beside = encode_lock_uid(verdict, attempt.uid)
                if await self._write(node, verdict, beside, entry.resource_version):
                    return
                # Another writer was faster than our watch.
                entry = node_entry(await self._api.get(NODES, node))
            else:
                waiting(verdict.why)
                if self._now() >= give_up_at:
                    left = (verdict.until - self._now()).total_seconds()
                    self._cluster.apply(LockHeld(node, entry.lock, self._cluster.monotonic() + left))
                    raise LockBusy(f"{verdict.why}; waited {self._settings.lock_wait_seconds:g} s")
                await self._sleep(changed, min(verdict.until, give_up_at))
                entry = self._cluster.state.pods.node(node)

    async def release(self, attempt: BindAttempt) -> None:
        """Removes the pod's lock from its node, unless the pod is bound. It tries for as long as a bind may take."""
        problem = "no answer"
        try:
            async with asyncio.timeout(self._settings.bind_deadline_seconds):
                while problem:
                    try:
                        problem = await self._still_locked(attempt)
                    except (ApiError, ApiUnreachable) as error:
                        problem = str(error)
                    if problem:
                        await asyncio.sleep(RETRY_SECONDS)
        except TimeoutError:
            message = "the lock of pod %s on node %s stays until it expires: %s"
            log.warning(message, attempt.pod, attempt.node, problem)

    async def _still_locked(self, attempt: BindAttempt) -> str:
        """Removes the lock if it is this pod's, unless the pod is bound. Returns why that failed; empty if it did not.
        Raises ApiError or ApiUnreachable.
        """
        try:
            pod = await self._api.get(PODS, attempt.pod.name, attempt.pod.namespace)
            is_bound = pod.spec.node_name == attempt.node and pod.metadata.uid in ("", attempt.uid)
        except NotFound:
            is_bound = False
        if is_bound:
            return ""
        try:
            entry = node_entry(await self._api.get(NODES, attempt.node))
            is_ours = is_held_by(entry.lock, entry.lock_uid, attempt.pod, attempt.uid)
            removed = not is_ours or await self._write(attempt.node, None, None, entry.resource_version)
        except (NotFound, NodeUnknown):
            removed = True
        return "" if removed else "the node changes all the time"

    async def _owner_waits(self, node: str, entry: NodeEntry, pod: PodName) -> bool:
        holder, kept = owner_of(entry.lock), self._cluster.state.pods
        # The same pod takes its lock again: the watch may not have shown the release yet.
        if holder is None or holder == pod:
            return False
        known = kept.pod(holder)
        if known is None or entry.lock_uid not in ("", known.uid):
            # A pod that the watch has not shown yet must not lose its lock.
            try:
                found = await self._api.get(PODS, holder.name, holder.namespace)
            except NotFound:
                return False
            if not kept.concerns_gpus(found) or entry.lock_uid not in ("", found.metadata.uid):
                return False
            self._cluster.apply(PodRead(found))
            known = pod_entry(found)
        return lacks_devices(known, node, served_by_hami=entry.served_by_hami)

    def _first_seen_at(self, node: str, value: str) -> datetime:
        if not value:
            self._first_seen.pop(node, None)
            return self._now()
        seen = self._first_seen.get(node)
        if seen is None or seen.value != value:
            seen = self._first_seen[node] = _SeenLock(value, self._now())
        return seen.at

    async def _write(self, node: str, value: str | None, beside: str | None, resource_version: str) -> bool:
        """Writes the lock's annotations. Returns False if the node has changed since `resource_version`. Raises
        NodeUnknown.
        """
        annotations = {NODE_LOCK: value, NODE_LOCK_UID: beside}
        metadata = {"annotations": annotations, "resourceVersion": resource_version}
        try:
            await self._api.patch(NODES, node, {"metadata": metadata})
        except Conflict:
            return False
        except NotFound as error:
            raise NodeUnknown from error
        return True

    async def _sleep(self, changed: asyncio.Event, until: datetime) -> None:
        try:
            async with asyncio.timeout(max((until - self._now()).total_seconds(), 0.01)):
                await changed.wait()
        except TimeoutError:
            pass
