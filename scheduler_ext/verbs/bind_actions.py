"""Performs the actions of a bind that take time: each ends in the next event of the machine."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from proto.annotations.node_lock import BindPhase
from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiError, ApiUnreachable, Conflict, NotFound, ServerError, TooManyRequests
from proto.kubernetes.objects import NODES, PODS, Pod
from scheduler_ext.cluster.events import BindStep
from scheduler_ext.cluster.pod_index import NodeEntry, PodName, node_entry
from scheduler_ext.settings import ServeSettings
from scheduler_ext.verbs.bind_decision import (
    BindImpossible,
    BindRefused,
    binding_of,
    decide_read,
    decide_unread,
    event_after_conflict,
    event_after_settling,
    is_unsettled,
    watched_event,
)
from scheduler_ext.verbs.binding_sender import BindingSender
from scheduler_ext.verbs.live_cluster import LiveCluster
from scheduler_ext.verbs.node_locks import RETRY_SECONDS, LockBusy, NodeLocks, NodeUnknown
from scheduler_ext.verbs.state_machine import BindAttempt, BindEffect, BindEvent

log = logging.getLogger(__name__)

_EVENTS: Mapping[type[Exception], BindEvent] = {Conflict: BindEvent.CONFLICT, TooManyRequests: BindEvent.TURNED_AWAY}
"""The events of a Binding that the API server did not take; without one its answer counts as lost."""


@dataclass(slots=True)
class BindRun:
    """One bind under way. `doing` is the reason given for a missed deadline, `problem` the reason of the last event."""

    attempt: BindAttempt
    answer: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """The reason for which the bind failed; empty if it did not."""
    waits_since: float = 0.0
    """The time at which the wait for the node's lock began, in monotonic seconds."""
    turn: ExitStack = field(default_factory=ExitStack)
    """The turn among the node's pods."""
    doing: str = "reading the pod"
    problem: str = ""
    pause_seconds: float = RETRY_SECONDS

    def break_off(self, error: Exception) -> None:
        self.problem = f"internal error, see the log: {error!r}"


class BindActions:
    def __init__(
        self,
        *,
        api: ApiServer,
        cluster: LiveCluster,
        settings: ServeSettings,
        sender: BindingSender,
        now: Callable[[], datetime],
        forbidden: Callable[[], Awaitable[str]],
    ) -> None:
        """`forbidden` returns why this process may not write Bindings now; empty if it may."""
        self._api = api
        self._cluster = cluster
        self._settings = settings
        self._sender = sender
        self._now = now
        self._monotonic = cluster.monotonic
        self._forbidden = forbidden
        self._locks = NodeLocks(api=api, cluster=cluster, settings=settings, now=now)
        self._performers = {
            BindEffect.DECIDE: self._decide,
            BindEffect.TAKE_TURN: self._take_turn,
            BindEffect.TAKE_LOCK: self._take_lock,
            BindEffect.GET_PERMISSION: self._get_permission,
            BindEffect.GET_PERMISSION_LATER: self._get_permission_later,
            BindEffect.SEND: self._send,
            BindEffect.READ: self._read,
        }

    async def performed(self, run: BindRun, action: BindEffect) -> BindEvent:
        try:
            return await self._performers[action](run)
        except BindRefused as error:
            run.problem = str(error)
            return error.event
        except (NodeUnknown, LockBusy, ApiError, ApiUnreachable) as error:
            run.problem = str(error)
            return BindEvent.STOPPED
        except Exception as error:
            log.exception("pod %s: its bind failed", run.attempt.pod)
            run.break_off(error)
            return BindEvent.CUT_OFF

    async def found(self, attempt: BindAttempt) -> Pod | None:
        """Returns the live pod; None if there is none of its name."""
        try:
            return await self._api.get(PODS, attempt.pod.name, attempt.pod.namespace)
        except NotFound:
            return None

    async def settled(self, attempt: BindAttempt, under_way: Collection[PodName]) -> BindEvent:
        """Returns the outcome of a Binding whose answer was lost; `under_way` are the pods that are being bound."""
        state = self._cluster.state
        if not is_unsettled(state, attempt, self._monotonic()):
            return BindEvent.OVERTAKEN
        await asyncio.sleep(self._settings.settle_seconds)
        try:
            pod = await self.found(attempt)
        except (ApiError, ApiUnreachable):
            return BindEvent.UNKNOWN
        is_binding = attempt.pod in under_way
        event = event_after_settling(state, attempt, pod, is_binding=is_binding, now=self._monotonic())
        if event is BindEvent.NOT_BOUND:
            log.info("pod %s was not bound to node %s", attempt.pod, attempt.node)
        return event

    async def unlock(self, attempt: BindAttempt) -> None:
        await self._locks.release(attempt)

    async def _decide(self, run: BindRun) -> BindEvent:
        attempt, state = run.attempt, self._cluster.state
        node = state.pods.node(attempt.node)
        if node is None:
            event = watched_event(state.pods, attempt)
            if event is not None:
                return event
            node = await self._read_node(attempt.node)
        now = self._monotonic()
        decided = decide_unread(state, attempt, now=now, until=self._held_until(now))
        if decided is None:
            pod, now = await self.found(attempt), self._monotonic()
            decided = decide_read(state, attempt, pod, now=now, until=self._held_until(now))
        run.attempt, event = decided
        needs_lock = event is BindEvent.DECIDED and run.attempt.shares is not None and not node.by_slots
        return BindEvent.LOCK_NEEDED if needs_lock else event

    def _held_until(self, now: float) -> float:
        return self._settings.held_until(now, self._settings.reservation_lease_seconds)

    async def _read_node(self, name: str) -> NodeEntry:
        """Returns the entry of a node that the watch has not shown yet. Raises NodeUnknown."""
        try:
            return node_entry(await self._api.get(NODES, name))
        except NotFound as error:
            raise NodeUnknown from error

    async def _take_turn(self, run: BindRun) -> BindEvent:
        """Waits for the pod's turn on its node: each pod waits until the one before has its devices."""
        run.waits_since = self._monotonic()
        run.doing = "other pods are bound to the node first, one after the other"
        run.turn.callback(await self._locks.take_turn(run.attempt.node, run.doing))
        return BindEvent.TURN

    async def _take_lock(self, run: BindRun) -> BindEvent:
        attempt, waited = run.attempt, self._monotonic() - run.waits_since

        def waiting(why: str) -> None:
            if why != run.doing:
                self._cluster.apply(BindStep(attempt.uid, f"its bind to node {attempt.node} waits: {why}"))
            run.doing = why

        give_up_at = self._now() + timedelta(seconds=self._settings.lock_wait_seconds - waited)
        await self._locks.take(attempt, waiting, give_up_at=give_up_at)
        return BindEvent.LOCKED

    async def _get_permission(self, _: BindRun) -> BindEvent:
        problem = await self._forbidden()
        if problem:
            raise BindRefused(problem)
        return BindEvent.PERMITTED

    async def _get_permission_later(self, run: BindRun) -> BindEvent:
        await asyncio.sleep(run.pause_seconds)
        return await self._get_permission(run)

    async def _send(self, run: BindRun) -> BindEvent:
        """Sends the Binding again until the API server answers. A duplicate does no harm: it conflicts with
        the first.
        """
        attempt = run.attempt
        # With slots the pod has its devices as soon as it is bound. A daemon without slots reports when it has them.
        phase = BindPhase.ALLOCATING if attempt.locked else BindPhase.SUCCESS
        run.pause_seconds = RETRY_SECONDS
        try:
            await self._sender.send(
                binding_of(attempt.pod, attempt.uid, attempt.node, attempt.shares, self._now(), phase=phase)
            )
        except NotFound as error:
            raise BindImpossible("the pod is gone") from error
        except (ApiUnreachable, Conflict, ServerError, TooManyRequests) as error:
            run.doing = str(error)
            if isinstance(error, ApiError):
                run.pause_seconds = max(RETRY_SECONDS, error.retry_after_seconds or 0)
            return _EVENTS.get(type(error), BindEvent.LOST)
        return BindEvent.TAKEN

    async def _read(self, run: BindRun) -> BindEvent:
        event = event_after_conflict(run.attempt, await self.found(run.attempt))
        if event is BindEvent.NOT_BOUND:
            run.problem = "the API server refused the Binding"
        return event
