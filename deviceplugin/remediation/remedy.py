"""Feeds the state machine with what the daemon sees, and carries out its effects (edge)."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from deviceplugin.allocation.sources import AllocationSources
from deviceplugin.node.desired import Desired
from deviceplugin.pod_results import PodResults
from deviceplugin.remediation.budget import Spent, reserve
from deviceplugin.remediation.holders import holder_of, seen, unshown, why_spared
from deviceplugin.remediation.step import (
    Event,
    Evict,
    Evicted,
    EvictionRefused,
    Holder,
    Needless,
    Paused,
    RemediationState,
    Remembered,
    Spared,
    Tell,
    is_due,
    lasting,
    next_look,
    spoken,
    step,
    stranded,
    told_by,
)
from deviceplugin.replicas import split_replica
from deviceplugin.settings import REMEDIATION_LEASE, RemediationSettings, Remedy
from program.tasks import Tasks
from program.words import enumerated
from proto.annotations.errors import AnnotationError
from proto.annotations.keys import NODE_CONDITION, NODE_REGISTER, NODE_TAINT, NODE_UNHEALTHY
from proto.annotations.node_register import decode_register
from proto.annotations.unhealthy_since import decode_unhealthy, encode_unhealthy, stamp
from proto.devices import DeviceUUID
from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiError, ApiUnreachable, Conflict, NotFound
from proto.kubernetes.events import EventRecorder
from proto.kubernetes.objects import LEASES, PODS, Condition, Node, ObjectReference

log = logging.getLogger(__name__)

_RESERVE_ATTEMPTS = 6
_SET = timedelta(seconds=30)
"""A clock that moves by more was set; by less it may drift."""
_UNCOUNTED = timedelta(minutes=10)
"""The time between two looks for a Lease on which evictions cannot be counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeClocks:
    """The clocks of this node. `uptime` is in seconds."""

    now: Callable[[], datetime]
    monotonic: Callable[[], float] = time.monotonic
    uptime: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)


class Remediation:
    """The wall clock is read once, but for what is counted with other nodes: from then on the monotonic clock counts,
    so that setting a clock evicts no pod.

    `count` is called with the outcome of each attempt to evict: evicted, refused, spared, needless or paused.
    """

    def __init__(
        self,
        api: ApiServer,
        sources: AllocationSources,
        events: EventRecorder,
        clocks: NodeClocks,
        *,
        count: Callable[[str], object],
    ) -> None:
        self._api = api
        self._own = sources.own
        self._gpus = sources.gpus
        self._changes = sources.changes
        self._read_checkpoint = sources.read_checkpoint
        self._events = events
        self._settings = settings = sources.configuration.remediation
        self._resource = resource = sources.resource
        self._count = count
        self._clock = clocks.now
        self._uptime = clocks.uptime
        self._set_by = timedelta()
        began, at = clocks.now(), clocks.monotonic()
        self._now: Callable[[], datetime] = lambda: began + timedelta(seconds=clocks.monotonic() - at)
        self._state = RemediationState()
        self._holders: PodResults[Mapping[DeviceUUID, DeviceUUID], Holder | None] = PodResults(
            lambda pod, parents: holder_of(pod, parents, resource)
        )
        self._had: Collection[str] | None = None
        """GPUs that the Node named when this process began; None before that."""
        self._told_of_strangers = False
        self._remembers = settings.reports
        self._evictions = Tasks()

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            await self._watch()
        finally:
            await self._evictions.end()

    def lasting(self) -> int:
        """Returns the number of GPUs that have been unhealthy for long."""
        return len(lasting(self._state, self._now(), self._settings))

    def stranded(self) -> tuple[Holder, ...]:
        """Returns the pods on GPUs that have been unhealthy for long."""
        return stranded(self._state, self._now(), self._settings)

    async def _watch(self) -> None:
        while True:
            change = self._changes.next()
            await self._look()
            look = next_look(self._state, self._now(), self._settings)
            try:
                async with asyncio.timeout(None if look is None else (look - self._now()).total_seconds()):
                    await change.wait()
            except TimeoutError:
                continue

    async def _look(self) -> None:
        """Takes the state of the GPUs, once node, pods and GPUs are known."""
        node, inventory = self._own.node, self._gpus.inventory
        if node is not None and self._had is None:
            self._had = _named(node)
        if node is None or not self._own.pods_known or not self._gpus.known:
            return
        if self._remembers:
            self._remembers = False
            self._remember(node.metadata.annotations.get(NODE_UNHEALTHY, ""))
        off = self._off()
        holders = [
            # A pod leaves at a time of the API server's clock.
            each if each.leaves_at is None else replace(each, leaves_at=each.leaves_at - off)
            for each in self._holders.of(self._own.pods, inventory.parents)
            if each is not None
        ]
        hidden, is_blind = unshown(inventory, holders), self._gpus.is_blind
        lost = self._lost(hidden, await self._booked()) if hidden else hidden
        found = seen(inventory, holders, lost, is_blind=is_blind)
        if found.ill or found.well:
            self._take(found)

    def _lost(self, unshown: frozenset[DeviceUUID], booked: frozenset[DeviceUUID]) -> frozenset[DeviceUUID]:
        """Returns the GPUs that the Node has named or kubelet has given out. Others do not exist: pods were changed."""
        lost = unshown & {*(self._had or ()), *self._state.ill, *booked}
        strange = unshown - lost
        if strange and not self._told_of_strangers:
            self._told_of_strangers = True
            log.warning("pods name GPUs that this node never had, which is ignored: %s", enumerated(sorted(strange)))
        return lost

    async def _booked(self) -> frozenset[DeviceUUID]:
        """Returns the GPUs whose ids kubelet has given out."""
        holdings = await self._read_checkpoint() or ()
        return frozenset(split_replica(identifier)[0] for each in holdings for identifier in each.ids)

    def _remember(self, value: str) -> None:
        # A time before the boot may come from a clock that was wrong until it was set.
        booted_at = self._now() - timedelta(seconds=self._uptime())
        try:
            since = decode_unhealthy(value) if value else {}
            self._take(Remembered({key: max(at, booted_at) for key, at in since.items()}))
        except AnnotationError as error:
            log.warning("since when GPUs are unhealthy begins again now: node %s: %s", self._own.name, error)

    def _take(self, event: Event) -> None:
        before = self._state
        self._state, effects = step(before, event, self._now(), self._settings)
        for effect in effects:
            match effect:
                case Evict(holder):
                    self._evictions.begin(self._evict(holder))
                case Tell(notice, None):
                    log.warning("%s", notice.message)
                    self._events.record(self._own.reference(), notice)
                case Tell(notice, Holder() as holder):
                    log.warning("pod %s: %s", holder.name, notice.message)
                    self._events.record(_reference(holder), notice)
        if self._state != before:
            self._changes.announce()

    def marks(self, _node: Node, _now: datetime) -> Desired | None:
        """Returns the annotation and the taint that the Node should have."""
        return self._desired(desired_marks)

    def condition(self, _node: Node, _now: datetime) -> Desired | None:
        """Returns the condition that the Node should have."""
        return self._desired(desired_condition)

    def _desired(self, words: Callable[[RemediationState, datetime, RemediationSettings], Desired]) -> Desired | None:
        if self._settings.reports and self._state.began_at is None:
            return None
        now, off = self._now(), self._off()
        look = next_look(self._state, now, self._settings)
        desired = words(told_by(self._state, off), now + off, self._settings)
        return desired if look is None else replace(desired, again_in=look - now)

    def _off(self) -> timedelta:
        """Returns by how much the node's clock has been set since this process began."""
        off = self._clock() - self._now()
        if abs(off - self._set_by) > _SET:
            self._set_by = off
        return self._set_by

    async def _evict(self, holder: Holder) -> None:
        event: Event
        try:
            event = await self._tried(holder)
        except (NotFound, Conflict):
            event = Needless(holder.uid)
        except (ApiError, ApiUnreachable) as error:
            event = EvictionRefused(holder.uid, str(error))
        self._count(type(event).__name__.lower())
        self._take(event)

    async def _tried(self, holder: Holder) -> Evicted | Spared | Needless | Paused:
        """Checks whether the pod may be evicted, counts the eviction, and evicts the pod. Raises ApiError or
        ApiUnreachable.
        """
        pod = await self._api.get(PODS, holder.pod, namespace=holder.namespace)
        again = holder_of(pod, self._gpus.inventory.parents, self._resource)
        if pod.metadata.uid != holder.uid or pod.spec.node_name != self._own.name or again is None:
            return Needless(holder.uid)
        controllers = (each.kind for each in pod.metadata.owner_references if each.controller)
        spared = why_spared(pod, next(controllers, ""))
        if spared:
            return Spared(holder.uid, spared)
        await self._api.evict(holder.pod, holder.namespace, holder.uid, dry_run=True)
        paused = await self._reserved()
        if paused is not None:
            return Paused(holder.uid, paused)
        if not is_due(self._state, again, self._now(), self._settings):
            return Needless(holder.uid)
        await self._api.evict(holder.pod, holder.namespace, holder.uid)
        return Evicted(holder.uid)

    async def _reserved(self) -> datetime | None:
        """Returns None once an eviction is counted; else when one may be left. Raises ApiError or ApiUnreachable."""
        namespace, name = self._settings.lease_namespace, REMEDIATION_LEASE
        for attempt in range(_RESERVE_ATTEMPTS):
            try:
                lease = await self._api.get(LEASES, name, namespace=namespace)
                # Nodes share the clocks that are set.
                now = self._clock()
                body = reserve(lease, self._own.name, now, self._settings)
                if isinstance(body, Spent):
                    log.warning("no pod is evicted before %s: %s", body.until.isoformat(), body.why)
                    return self._now() + (body.until - now)
                await self._api.patch(LEASES, name, body, namespace=namespace)
                return None
            except AnnotationError as error:
                log.error("no pod is evicted, because lease %s/%s cannot be read: %s", namespace, name, error)
                return self._now() + _UNCOUNTED
            except NotFound:
                missing = "evictions are counted on it; make it"
                log.error("no pod is evicted, because there is no lease %s/%s: %s", namespace, name, missing)
                return self._now() + _UNCOUNTED
            except Conflict:
                # Another node's daemon was first.
                pass
            await asyncio.sleep(random.random() * 0.1 * 2**attempt)  # noqa: S311 - daemons part ways
        return self._now() + timedelta(seconds=10)


def _named(node: Node) -> frozenset[str]:
    """Returns the GPUs that an earlier daemon registered or reported as unhealthy, as far as they can be read."""
    named: set[str] = set()
    with suppress(AnnotationError):
        named |= {device.uuid for device in decode_register(node.metadata.annotations.get(NODE_REGISTER, ""))}
    with suppress(AnnotationError):
        named |= decode_unhealthy(node.metadata.annotations.get(NODE_UNHEALTHY, "{}")).keys()
    return frozenset(named)


def _reference(holder: Holder) -> ObjectReference:
    return ObjectReference(api_version="v1", kind="Pod", namespace=holder.namespace, name=holder.pod, uid=holder.uid)


_EFFECT = "NoSchedule"
_LONGEST_MESSAGE = 4096


def desired_marks(state: RemediationState, now: datetime, settings: RemediationSettings) -> Desired:
    """Returns the annotation and the taint."""
    ill = settings.reports and bool(state.ill)
    since = encode_unhealthy({key: each.since for key, each in state.ill.items()}) if ill else None
    effect = _EFFECT if _is_tainted(state, now, settings) else None
    return Desired(annotations={NODE_UNHEALTHY: since}, taints={NODE_TAINT: effect})


def desired_condition(state: RemediationState, now: datetime, settings: RemediationSettings) -> Desired:
    return Desired(conditions={NODE_CONDITION: _condition(state, now, settings) if settings.reports else None})


def _condition(state: RemediationState, now: datetime, settings: RemediationSettings) -> Condition:
    found = [state.ill[key] for key in lasting(state, now, settings)]
    if not found:
        message = f"no GPU has been unhealthy for {spoken(settings.after)}"
        return Condition(type=NODE_CONDITION, status="True", reason="GPUsHealthy", message=message)
    ordered = sorted(found, key=lambda each: each.name)
    message = "; ".join(f"{each.name} since {stamp(each.since)}: {each.problem}" for each in ordered)
    message = message[:_LONGEST_MESSAGE]
    return Condition(type=NODE_CONDITION, status="False", reason="GPUsUnhealthy", message=message)


def _is_tainted(state: RemediationState, now: datetime, settings: RemediationSettings) -> bool:
    found = len(lasting(state, now, settings))
    if Remedy.TAINT_ANY in settings.remedies:
        return found > 0
    return Remedy.TAINT_ALL in settings.remedies and 0 < found >= state.gpus
