"""Performs the actions of a bind that take time, among them the Binding: each ends in the next event of the machine."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import inf
from weakref import WeakValueDictionary

from proto.annotations.bind_phase import BindPhase
from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiError, ApiUnreachable, Conflict, NotFound, ServerError, TooManyRequests
from proto.kubernetes.objects import NODES, PODS, Binding, Pod
from scheduler_ext.cluster.events import BindStep
from scheduler_ext.cluster.pod_index import NodeEntry, PodName, node_entry
from scheduler_ext.settings import SLACK_SECONDS, ServeSettings
from scheduler_ext.verbs.bind_decision import (
    BindRefused,
    Void,
    binding_of,
    checked,
    decide_read,
    decide_unread,
    is_open,
    outcome,
    shown,
)
from scheduler_ext.verbs.live_cluster import LiveCluster
from scheduler_ext.verbs.node_locks import LockBusy, NodeLocks, NodeUnknown
from scheduler_ext.verbs.state_machine import BindAttempt, BindEffect, BindEvent


class BindingSender:
    def __init__(self, api: ApiServer, seconds: float, monotonic: Callable[[], float], *, left: bool = False) -> None:
        """Gives up each Binding after `seconds`. `left` is true if the process before had sent some and is gone: the
        API server may carry them out as if they had been given up now.
        """
        self.seconds = min(api.timeout_seconds, seconds)
        self._api = api
        self._monotonic = monotonic
        self._on_their_way = 0
        self._answered = asyncio.Event()
        """The event is set whenever no Binding is on its way."""
        self._answered.set()
        self._open_until = self._given_up() if left else -inf
        """The end of the time in which the API server may carry out a Binding without an answer."""

    async def send(self, binding: Binding) -> None:
        """Sends a Binding. It is given up when the API server gives it up too, so that it cannot be carried out later.

        Raises ApiError or ApiUnreachable.
        """
        settled = False
        self._on_their_way += 1
        self._answered.clear()
        try:
            await self._api.bind(binding, within_seconds=self.seconds)
            settled = True
        except ServerError:
            raise
        except ApiError:
            settled = True
            raise
        finally:
            if not settled:
                self._open_until = self._given_up()
            self._on_their_way -= 1
            if not self._on_their_way:
                self._answered.set()

    def _given_up(self) -> float:
        """Returns until when the API server may carry out a Binding that is given up now, in monotonic seconds."""
        return self._monotonic() + self.seconds + SLACK_SECONDS

    async def written(self) -> bool:
        """Waits until no Binding is on its way. Returns whether none that was sent can still be carried out."""
        await self._answered.wait()
        return self._monotonic() >= self._open_until


log = logging.getLogger(__name__)

RETRY_SECONDS = 0.2
_REFUSALS: Mapping[type[Exception], BindEvent] = {Conflict: BindEvent.CONFLICT, TooManyRequests: BindEvent.TURNED_AWAY}


@dataclass(slots=True)
class Run:
    """One bind under way. `doing` is the reason given for a missed deadline, `problem` the reason of the last event."""

    attempt: BindAttempt
    deadline: float
    """The time at which the answer must be there, by the clock of the event loop."""
    give_up_at: datetime
    """The time at which the wait for the node's lock is given up."""
    answer: str = ""
    """The reason for which the bind failed; empty if it did not."""
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    waits_since: float = 0.0
    """The time at which the wait for the node's lock began, in monotonic seconds."""
    turn: AsyncExitStack = field(default_factory=AsyncExitStack)
    """The turn among the node's pods."""
    doing: str = "reading the pod"
    problem: str = ""
    pause_seconds: float = 0.0


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
        self._api = api
        self._cluster = cluster
        self._ledger = cluster.state.ledger
        self._settings = settings
        self._sender = sender
        self._now = now
        self._monotonic = cluster.monotonic
        self._forbidden = forbidden
        ttl = timedelta(seconds=settings.node_lock_ttl_seconds)
        self._locks = NodeLocks(api=api, cluster=cluster, now=now, ttl=ttl)
        self._queues: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

        self._performers = {
            BindEffect.DECIDE: self._decide,
            BindEffect.TAKE_TURN: self._take_turn,
            BindEffect.TAKE_LOCK: self._take_lock,
            BindEffect.GET_PERMISSION: self._get_permission,
            BindEffect.GET_PERMISSION_LATER: self._get_permission_later,
            BindEffect.SEND: self._send,
            BindEffect.READ: self._read,
        }

    def begin(self, attempt: BindAttempt) -> Run:
        deadline = asyncio.get_running_loop().time() + self._settings.bind_deadline_seconds
        return Run(attempt, deadline, self._now())

    async def performed(self, run: Run, action: BindEffect) -> BindEvent:
        try:
            return await self._performers[action](run)
        except NodeUnknown:
            run.problem = "there is no such node"
            return BindEvent.STOPPED
        except (BindRefused, ApiError, ApiUnreachable) as error:
            run.problem = str(error)
            return error.event if isinstance(error, BindRefused) else BindEvent.STOPPED
        except Exception as error:
            log.exception("pod %s: its bind failed; what led to it: %s", run.attempt.pod, self.history(run.attempt))
            run.problem = f"internal error, see the log: {error!r}"
            return BindEvent.CUT_OFF

    def history(self, attempt: BindAttempt) -> str:
        return self._cluster.state.history.line(attempt.uid, self._monotonic())

    async def _decide(self, run: Run) -> BindEvent:
        attempt, state = run.attempt, self._cluster.state
        event = shown(state.pods, attempt)
        if event is not None:
            return event
        node = await self._node(attempt.node)
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

    async def _node(self, name: str) -> NodeEntry:
        """Returns the node's entry, also if the watch has not shown it yet. Raises NodeUnknown."""
        entry = self._cluster.state.pods.node(name)
        if entry is not None:
            return entry
        try:
            return node_entry(await self._api.get(NODES, name))
        except NotFound as error:
            raise NodeUnknown(name) from error

    async def found(self, attempt: BindAttempt) -> Pod | None:
        """Returns the live pod; None if there is none of its name."""
        try:
            return await self._api.get(PODS, attempt.pod.name, attempt.pod.namespace)
        except NotFound:
            return None

    async def _take_turn(self, run: Run) -> BindEvent:
        """Waits for the pod's turn on its node: each pod waits until the one before has its devices. Raises BindRefused
        when the time for it is over.
        """
        queue = self._queues.setdefault(run.attempt.node, asyncio.Lock())
        seconds = self._settings.lock_wait_seconds
        run.waits_since, run.give_up_at = self._monotonic(), self._now() + timedelta(seconds=seconds)
        run.doing = "other pods are bound to the node first, one after the other"
        try:
            async with asyncio.timeout(seconds):
                await queue.acquire()
        except TimeoutError as error:
            raise BindRefused(f"{run.doing}; waited {seconds:g} s") from error
        run.turn.callback(queue.release)
        return BindEvent.TURN

    async def _take_lock(self, run: Run) -> BindEvent:
        attempt = run.attempt

        def waiting(why: str) -> None:
            if why != run.doing:
                self._cluster.apply(BindStep(attempt.uid, f"its bind to node {attempt.node} waits: {why}"))
            run.doing = why

        try:
            await self._locks.take(attempt.node, attempt.pod, attempt.uid, waiting, give_up_at=run.give_up_at)
        except LockBusy as error:
            raise BindRefused(f"{error}; waited {self._settings.lock_wait_seconds:g} s") from error
        return BindEvent.LOCKED

    async def _get_permission(self, _: Run) -> BindEvent:
        problem = await self._forbidden()
        if problem:
            raise BindRefused(problem)
        return BindEvent.PERMITTED

    async def _get_permission_later(self, run: Run) -> BindEvent:
        await asyncio.sleep(run.pause_seconds)
        return await self._get_permission(run)

    async def _send(self, run: Run) -> BindEvent:
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
            raise Void("the pod is gone") from error
        except (ApiUnreachable, Conflict, ServerError, TooManyRequests) as error:
            run.doing = str(error)
            if isinstance(error, ApiError):
                run.pause_seconds = max(RETRY_SECONDS, error.retry_after_seconds or 0)
            return _REFUSALS.get(type(error), BindEvent.LOST)
        return BindEvent.TAKEN

    async def _read(self, run: Run) -> BindEvent:
        event = checked(run.attempt, await self.found(run.attempt))
        if event is BindEvent.NOT_BOUND:
            run.problem = "the API server refused the Binding"
        return event

    async def checked(self, attempt: BindAttempt, under_way: Collection[PodName]) -> BindEvent:
        """Returns the outcome of a Binding whose answer was lost; `under_way` are the pods that are being bound."""
        if not is_open(self._cluster.state, attempt, self._monotonic()):
            return BindEvent.OVERTAKEN
        await asyncio.sleep(self._settings.settle_seconds)
        try:
            pod = await self.found(attempt)
        except (ApiError, ApiUnreachable):
            return BindEvent.UNKNOWN
        state, now = self._cluster.state, self._monotonic()
        event = outcome(state, attempt, pod, is_binding=attempt.pod in under_way, now=now)
        if event is BindEvent.NOT_BOUND:
            log.info("pod %s was not bound to node %s", attempt.pod, attempt.node)
        return event

    async def unlock(self, attempt: BindAttempt) -> None:
        """Removes the pod's lock from its node, unless the pod is bound. It tries for as long as a bind may take."""
        problem = "no answer"
        try:
            async with asyncio.timeout(self._settings.bind_deadline_seconds):
                while problem:
                    problem = await self._still_locked(attempt)
                    if problem:
                        await asyncio.sleep(RETRY_SECONDS)
        except TimeoutError:
            message = "the lock of pod %s on node %s stays until it expires: %s"
            log.warning(message, attempt.pod, attempt.node, problem)

    async def _still_locked(self, attempt: BindAttempt) -> str:
        """Releases the lock, unless the pod is bound. Returns why that failed; empty if it did not."""
        try:
            pod = await self._api.get(PODS, attempt.pod.name, attempt.pod.namespace)
            is_bound = pod.spec.node_name == attempt.node and pod.metadata.uid in ("", attempt.uid)
        except NotFound:
            is_bound = False
        except (ApiError, ApiUnreachable) as error:
            return str(error)
        try:
            released = is_bound or await self._locks.release(attempt.node, attempt.pod, attempt.uid)
        except (ApiError, ApiUnreachable) as error:
            return str(error)
        return "" if released else "the node changes all the time"
