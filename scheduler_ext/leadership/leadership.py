"""Answers whether this replica leads: by the Lease of the kube-scheduler beside us, and once it has taken over the
extenders' own Lease, which it hands over to the next leader. The leader labels the pods with their roles, and the
webhook's Service selects it by its label.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from proto.annotations.keys import SCHEDULER_ROLE
from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiError, ApiUnreachable
from proto.kubernetes.objects import LEASES, PODS, Lease
from proto.kubernetes.reflector import Interrupted, ObjectApplied, ObjectRemoved, ReflectorPace, Replaced, reflect
from scheduler_ext.leadership.binding_lease import BindingLease
from scheduler_ext.leadership.election import (
    ElectionStanding,
    Role,
    after_another_had_the_turn,
    after_catching_up,
    after_lease,
    after_time,
    host_of,
)
from scheduler_ext.settings import LeaseSettings

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5
_PACE = ReflectorPace(silent_seconds=5.0)
"""kube-scheduler renews every 1 to 2 s, and the holder of the Lease is known for 15 s. A dead connection must be found
before that.
"""


class Sender(Protocol):
    """Sends Bindings. It and the API server give up a Binding without an answer after `seconds`."""

    seconds: float

    async def written(self) -> bool:
        """Waits until no Binding is on its way. Returns whether none that was sent can still be carried out."""
        ...


class Predecessors(Protocol):
    """Decisions before the lead of this process that it knows, its own among them."""

    def forget_sent(self) -> None:
        """Forgets what was sent from here, because another process may have had the turn to write."""

    async def catch_up(self) -> None:
        """Returns when everything decided before is known."""


class Leadership:
    """Without an election this replica leads once it has caught up."""

    def __init__(
        self,
        *,
        api: ApiServer,
        settings: LeaseSettings,
        sender: Sender,
        now: Callable[[], datetime],
        monotonic: Callable[[], float],
    ) -> None:
        self._api = api
        self._settings = settings
        self._sender = sender
        self._monotonic = monotonic
        self._standing = ElectionStanding()
        self._interrupted = ""
        """The problem of the watch of the Lease; empty without one."""
        self._leaving = False
        """True once this replica has given up the lead for good."""
        self._changed = asyncio.Event()
        """The event is set at the next change of leader or role, and then replaced."""
        self._lease = BindingLease(
            api=api,
            settings=settings,
            write_seconds=sender.seconds,
            changed=self._wake,
            now=now,
            monotonic=monotonic,
        )

    def leads(self) -> bool:
        if not self._settings.elects:
            return self._standing.role is Role.LEADER
        return not self._leaving and after_time(self._standing, self._monotonic()).role is Role.LEADER

    def leader(self) -> str:
        """Returns the host name that leads, as the Lease has it; empty without an election, or if none leads."""
        return "" if self._monotonic() >= self._standing.expires_at else host_of(self._standing.holder)

    def problem(self) -> str:
        """Returns why this replica does not decide, in one sentence; empty if it does."""
        if self.leads():
            return ""
        if not self._settings.elects:
            return "the outcome of Bindings that were sent from here before is not known yet"
        if self._leaving:
            return "this replica is stopping"
        if self._standing.role is Role.TAKING_OVER:
            return f"this replica is taking over {self._lease.problem() or 'and still lists what was decided before'}"
        lease = f"lease {self._settings.namespace}/{self._settings.name}"
        if not self._standing.holder:
            return f"this replica does not lead: {lease} has no holder"
        return f"this replica does not lead: {lease} was last renewed by {self._standing.holder}"

    async def forbidden(self) -> str:
        """Returns, before a Binding is sent, why it may not begin, in one sentence; empty if it may."""
        if not self._settings.elects:
            return ""
        return self.problem() or await self._lease.permit() or self.problem()

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

    async def run(self, predecessors: Predecessors) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            if self._settings.elects:
                tasks.create_task(self._follow())
                tasks.create_task(self._lease.follow())
                tasks.create_task(self._take_turns(predecessors))
            else:
                tasks.create_task(self._begin(predecessors))
            if self._settings.pod_name and self._settings.pod_namespace:
                tasks.create_task(label_roles(self._api, self._settings, self.leads, lambda: self._changed))

    async def leave(self) -> None:
        """Gives up the lead: no more Bindings begin here, so the next leader need not wait. Call it while `run` still
        runs.
        """
        self._leaving = True
        if self._settings.elects and await self._sender.written():
            await self._lease.release()
        await self._lease.end()

    async def _begin(self, predecessors: Predecessors) -> None:
        """Begins without an election."""
        await predecessors.catch_up()
        self._standing = ElectionStanding(role=Role.LEADER)
        self._wake()

    async def _follow(self) -> None:
        """Follows the Lease of the kube-scheduler beside us until cancelled."""
        where, selection = self._settings.namespace, f"metadata.name={self._settings.name}"
        async for change in reflect(self._api, LEASES, namespace=where, field_selector=selection, pace=_PACE):
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
        self._move(after_lease(self._standing, lease, self._settings.identity, self._monotonic()))

    def _move(self, standing: ElectionStanding) -> None:
        before, self._standing = self._standing, standing
        if before.role is not standing.role:
            log.info("this replica is now: %s (the lease is held by %s)", standing.role, standing.holder or "no one")
        if (before.role, before.holder) != (standing.role, standing.holder):
            self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _take_turns(self, predecessors: Predecessors) -> None:
        """Takes the extenders' own Lease after each change of leaders, and hands it over, until cancelled."""
        while True:
            changed = self._changed
            match self._standing.role:
                case _ if self._leaving:
                    await changed.wait()
                case Role.TAKING_OVER:
                    await _wait(changed, await self._taken_over(predecessors))
                case Role.LEADER if self._lease.is_held():
                    await _wait(changed, self._standing.expires_at - self._monotonic())
                case Role.LEADER:
                    self._move(after_another_had_the_turn(self._standing))
                case Role.FOLLOWER:
                    await _wait(changed, await self._handed_over())
            self._move(after_time(self._standing, self._monotonic()))

    async def _taken_over(self, predecessors: Predecessors) -> float | None:
        """Returns seconds until the next try, unless something changes earlier."""
        holder, held_for = self._standing.holder, self._lease.held_for()
        if held_for is None:
            return None
        if held_for > 0:
            log.info("no decisions for up to %.0f s: %s may have Bindings under way", held_for, self._lease.holder())
            return held_for
        if not await self._lease.take(predecessors.forget_sent, settled=await self._sender.written()):
            return _RETRY_SECONDS
        await predecessors.catch_up()
        if self._standing.holder == holder:
            self._move(after_catching_up(self._standing))
        return 0.0

    async def _handed_over(self) -> float | None:
        """Gives the Lease up, unless a Binding may still be carried out. Returns seconds until the next try; None to
        wait only for a change.
        """
        if not self._lease.is_held():
            return None
        if not await self._sender.written():
            return _RETRY_SECONDS
        await self._lease.release()
        return None


async def _wait(changed: asyncio.Event, seconds: float | None) -> None:
    """Waits for the change, but no longer than `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            await changed.wait()
    except TimeoutError:
        pass


_KINSHIP = ("app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component")
"""Labels that the replicas of one deployment share."""
_RELABEL_SECONDS = 5.0


async def label_roles(
    api: ApiServer, settings: LeaseSettings, leads: Callable[[], bool], next_change: Callable[[], asyncio.Event]
) -> None:
    """Labels the pods whenever this replica leads, until cancelled."""
    while True:
        changed = next_change()
        if leads():
            try:
                await _label_pods(api, settings.pod_name, settings.pod_namespace)
            except (ApiError, ApiUnreachable) as error:
                log.warning("the scheduler's pods could not be labelled with their roles: %s", error)
                await asyncio.sleep(_RELABEL_SECONDS)
                continue
        await changed.wait()


async def _label_pods(api: ApiServer, own: str, namespace: str) -> None:
    ours = await api.get(PODS, own, namespace)
    kin = [f"{label}={ours.metadata.labels[label]}" for label in _KINSHIP if label in ours.metadata.labels]
    page = await api.list_page(PODS, namespace=namespace, label_selector=",".join(kin)) if kin else None
    pods = [ours, *(page.items if page is not None else ())]
    roles = {pod.metadata.name: pod.metadata.labels.get(SCHEDULER_ROLE, "") for pod in pods}
    for name, known in roles.items():
        role = (Role.LEADER if name == own else Role.FOLLOWER).value
        if known != role:
            labels = {"metadata": {"labels": {SCHEDULER_ROLE: role}}}
            await api.patch(PODS, name, labels, namespace=namespace)
