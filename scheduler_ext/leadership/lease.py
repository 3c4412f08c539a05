"""Follows the Lease of the kube-scheduler beside us, takes the extenders' own, and labels the scheduler's pods."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from uuid import uuid4

from proto.annotations.keys import SCHEDULER_ROLE
from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiError, ApiUnreachable
from proto.kubernetes.objects import LEASES, PODS, Lease
from proto.kubernetes.reflector import Interrupted, ObjectApplied, ObjectRemoved, ReflectorPace, Replaced, reflect
from scheduler_ext.leadership.binding_lease import BindingLease
from scheduler_ext.leadership.election import (
    Role,
    Standing,
    after_another_had_the_turn,
    after_catching_up,
    after_lease,
    after_time,
)

log = logging.getLogger(__name__)

_KINSHIP = ("app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component")
"""Labels that the replicas of one deployment share."""
_LABEL_RETRY_SECONDS = 5.0
_PACE = ReflectorPace(silent_seconds=5.0)
"""kube-scheduler renews every 1 to 2 s, and the holder of the Lease is known for 15 s. A dead connection must be found
before that.
"""
_TAKE_RETRY_SECONDS = 0.5
_SETTLE_RETRY_SECONDS = 0.5
BINDING_LEASE_SUFFIX = "-binding"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """`identity` is this host's name. The pod's own name and namespace are empty outside a pod."""

    name: str = ""
    """The name of the Lease; empty without leader election."""
    namespace: str = ""
    identity: str = ""
    process: str = field(default_factory=lambda: str(uuid4()))
    """Distinguishes the processes of a host, but not a process from its successor with the same journal."""
    pod_name: str = ""
    pod_namespace: str = ""


class Leadership:
    """True if this replica leads. Without an election it leads once it has caught up.

    `overtaken` forgets what was sent from here, because another process may have had the turn to write. `catch_up`
    returns when everything decided before is known. `written` returns when no Binding is on its way, and returns
    whether no Binding that was sent can still be carried out. This process and the API server give up a Binding
    without an answer after `write_seconds`.
    """

    def __init__(
        self,
        *,
        api: ApiServer,
        settings: LeaseSettings,
        overtaken: Callable[[], None],
        catch_up: Callable[[], Awaitable[None]],
        written: Callable[[], Awaitable[bool]],
        write_seconds: float,
        now: Callable[[], datetime],
        monotonic: Callable[[], float],
    ) -> None:
        self._api = api
        self._settings = settings
        self._overtaken = overtaken
        self._catch_up = catch_up
        self._written = written
        self._leaving = False
        self._monotonic = monotonic
        self._standing = Standing()
        self._interrupted = ""
        self._changed = asyncio.Event()
        self._binding = BindingLease(
            api=api,
            name=settings.name + BINDING_LEASE_SUFFIX,
            namespace=settings.namespace,
            process=f"{settings.identity}_{settings.process}",
            write_seconds=write_seconds,
            changed=self._has_changed,
            now=now,
            monotonic=monotonic,
        )

    def leads(self) -> bool:
        if not self._settings.name:
            return self._standing.role is Role.LEADER
        return not self._leaving and after_time(self._standing, self._monotonic()).role is Role.LEADER

    def problem(self) -> str:
        """Returns why this replica does not decide, in one sentence; empty if it does."""
        if self.leads():
            return ""
        if not self._settings.name:
            return "the outcome of Bindings that were sent from here before is not known yet"
        if self._leaving:
            return "this replica is stopping"
        standing = self._standing
        if standing.role is Role.TAKING_OVER:
            return f"this replica is taking over {self._binding.problem() or 'and still lists what was decided before'}"
        lease = f"lease {self._settings.namespace}/{self._settings.name}"
        if not standing.holder:
            return f"this replica does not lead: {lease} has no holder"
        return f"this replica does not lead: {lease} was last renewed by {standing.holder}"

    async def forbidden(self) -> str:
        """Returns, before a Binding is sent, why it may not begin, in one sentence; empty if it may."""
        if not self._settings.name:
            return ""
        return self.problem() or await self._binding.permit() or self.problem()

    def interrupted(self) -> str:
        """Returns why it is unknown who leads; empty while the Lease is seen and renewed."""
        standing = self._standing
        if self._interrupted or not standing.holder or self._monotonic() < standing.expires_at:
            return self._interrupted
        lease = f"{self._settings.namespace}/{self._settings.name}"
        return f"no replica leads: {standing.holder} has not renewed lease {lease} for longer than the lease lasts"

    async def wait(self, seconds: float) -> bool:
        """Waits until this replica leads. Returns False if it does not within `seconds`."""
        if self.leads():
            return True  # Called for every pod: the ordinary case needs no timer.
        try:
            async with asyncio.timeout(seconds):
                while not self.leads():
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            if self._settings.name:
                tasks.create_task(self._follow())
                tasks.create_task(self._binding.follow())
                tasks.create_task(self._take_over())
            else:
                tasks.create_task(self._begin())
            if self._settings.pod_name and self._settings.pod_namespace:
                tasks.create_task(self._label())

    async def _begin(self) -> None:
        """Begins without an election."""
        await self._catch_up()
        self._standing = Standing(role=Role.LEADER)
        self._has_changed()

    async def _follow(self) -> None:
        selection = f"metadata.name={self._settings.name}"
        namespace = self._settings.namespace
        async for change in reflect(self._api, LEASES, namespace=namespace, field_selector=selection, pace=_PACE):
            self._interrupted = ""
            match change:
                case Replaced(leases):
                    self._saw(next(iter(leases), None))
                case ObjectApplied(lease):
                    self._saw(lease)
                case ObjectRemoved():
                    self._saw(None)
                case Interrupted(problem, seconds):
                    self._interrupted = f"the watch of the lease is interrupted: {problem}"
                    log.warning("the watch of the lease is interrupted, next try in %.1f s: %s", seconds, problem)

    def _saw(self, lease: Lease | None) -> None:
        identity = self._settings.identity
        self._move(after_lease(self._standing, lease, identity, self._monotonic()))

    def _move(self, standing: Standing) -> None:
        before, self._standing = self._standing, standing
        if before.role is not standing.role:
            log.info("this replica is now: %s (the lease is held by %s)", standing.role, standing.holder or "no one")
        if (before.role, before.holder) != (standing.role, standing.holder):
            self._has_changed()

    def _has_changed(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _take_over(self) -> None:
        while True:
            changed = self._changed
            match self._standing.role:
                case _ if self._leaving:
                    await changed.wait()
                case Role.TAKING_OVER:
                    await _wait(changed, await self._taken_over(self._standing.holder))
                case Role.LEADER if self._binding.is_held():
                    await _wait(changed, self._standing.expires_at - self._monotonic())
                case Role.LEADER:
                    self._move(after_another_had_the_turn(self._standing))
                case Role.FOLLOWER:
                    await _wait(changed, await self._handed_over())
            self._move(after_time(self._standing, self._monotonic()))

    async def _taken_over(self, holder: str) -> float | None:
        """Returns seconds until the next look, unless something changes earlier."""
        held_for = self._binding.held_for()
        if held_for is None:
            return None
        if held_for > 0:
            log.info("no decisions for up to %.0f s: %s may have Bindings under way", held_for, self._binding.holder())
            return held_for
        if not await self._binding.take(self._overtaken, settled=await self._written()):
            return _TAKE_RETRY_SECONDS
        await self._catch_up()
        if self._standing.holder == holder:
            self._move(after_catching_up(self._standing))
        return 0.0

    async def _handed_over(self) -> float | None:
        """Returns seconds until the next look; None to wait only for a change."""
        if not self._binding.is_held():
            return None
        if not await self._written():
            return _SETTLE_RETRY_SECONDS
        await self._binding.release()
        return None

    async def leave(self) -> None:
        """Gives up the lead: no more Bindings begin here, so the next leader need not wait. Call it while `run` still
        runs.
        """
        self._leaving = True
        if self._settings.name and await self._written():
            await self._binding.release()
        await self._binding.end()

    async def _label(self) -> None:
        """Labels the pods: the webhook's Service selects the leader by its label."""
        while True:
            changed = self._changed
            if self.leads():
                try:
                    await self._label_pods()
                except (ApiError, ApiUnreachable) as error:
                    log.warning("the scheduler's pods could not be labelled with their roles: %s", error)
                    await asyncio.sleep(_LABEL_RETRY_SECONDS)
                    continue
            await changed.wait()

    async def _label_pods(self) -> None:
        own, namespace = self._settings.pod_name, self._settings.pod_namespace
        ours = await self._api.get(PODS, own, namespace)
        kin = [f"{label}={ours.metadata.labels[label]}" for label in _KINSHIP if label in ours.metadata.labels]
        page = await self._api.list_page(PODS, namespace=namespace, label_selector=",".join(kin)) if kin else None
        pods = [ours, *(page.items if page is not None else ())]
        roles = {pod.metadata.name: pod.metadata.labels.get(SCHEDULER_ROLE, "") for pod in pods}
        for name in roles:
            role = (Role.LEADER if name == own else Role.FOLLOWER).value
            if roles.get(name) != role:
                labels = {"metadata": {"labels": {SCHEDULER_ROLE: role}}}
                await self._api.patch(PODS, name, labels, namespace=namespace)


async def _wait(changed: asyncio.Event, seconds: float | None) -> None:
    """Waits for the change, but no longer than `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            await changed.wait()
    except TimeoutError:
        pass
