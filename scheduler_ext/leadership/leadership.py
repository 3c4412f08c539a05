"""Answers whether this replica leads. It follows, takes over and labels in parts of its own."""

import asyncio
from collections.abc import Callable
from datetime import datetime

from proto.kubernetes.client import ApiServer
from scheduler_ext.leadership.binding_lease import BindingLease
from scheduler_ext.leadership.election import ElectionStanding, Role, host_of
from scheduler_ext.leadership.live_election import LiveElection, follow_lease
from scheduler_ext.leadership.role_labels import label_roles
from scheduler_ext.leadership.take_over import Predecessors, Sender, TakeOver
from scheduler_ext.settings import LeaseSettings


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
        self._election = LiveElection(monotonic)
        self._lease = BindingLease(
            api=api,
            settings=settings,
            write_seconds=sender.seconds,
            changed=self._election.wake,
            now=now,
            monotonic=monotonic,
        )
        self._take_over = TakeOver(self._election, self._lease, sender)

    def leads(self) -> bool:
        if not self._settings.elects:
            return self._election.standing.role is Role.LEADER
        return self._election.leads()

    def leader(self) -> str:
        """Returns the host name that leads, as the Lease has it; empty without an election, or if none leads."""
        standing = self._election.standing
        return "" if self._election.monotonic() >= standing.expires_at else host_of(standing.holder)

    def problem(self) -> str:
        """Returns why this replica does not decide, in one sentence; empty if it does."""
        if self.leads():
            return ""
        if not self._settings.elects:
            return "the outcome of Bindings that were sent from here before is not known yet"
        if self._election.leaving:
            return "this replica is stopping"
        standing = self._election.standing
        if standing.role is Role.TAKING_OVER:
            return f"this replica is taking over {self._lease.problem() or 'and still lists what was decided before'}"
        lease = f"lease {self._settings.namespace}/{self._settings.name}"
        if not standing.holder:
            return f"this replica does not lead: {lease} has no holder"
        return f"this replica does not lead: {lease} was last renewed by {standing.holder}"

    async def forbidden(self) -> str:
        """Returns, before a Binding is sent, why it may not begin, in one sentence; empty if it may."""
        if not self._settings.elects:
            return ""
        return self.problem() or await self._lease.permit() or self.problem()

    def interrupted(self) -> str:
        """Returns why it is unknown who leads; empty while the Lease is seen and renewed."""
        election, standing = self._election, self._election.standing
        if election.interrupted or not standing.holder or election.monotonic() < standing.expires_at:
            return election.interrupted
        lease = f"{self._settings.namespace}/{self._settings.name}"
        return f"no replica leads: {standing.holder} has not renewed lease {lease} for longer than the lease lasts"

    async def wait(self, seconds: float) -> bool:
        """Waits until this replica leads. Returns False if it does not within `seconds`."""
        if self.leads():
            return True  # Called for every pod: the ordinary case needs no timer.
        try:
            async with asyncio.timeout(seconds):
                while not self.leads():
                    await self._election.changed.wait()
        except TimeoutError:
            return False
        return True

    async def run(self, predecessors: Predecessors) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            if self._settings.elects:
                tasks.create_task(follow_lease(self._api, self._settings, self._election))
                tasks.create_task(self._lease.follow())
                tasks.create_task(self._take_over.run(predecessors))
            else:
                tasks.create_task(self._begin(predecessors))
            if self._settings.pod_name and self._settings.pod_namespace:
                tasks.create_task(label_roles(self._api, self._settings, self.leads, self._election))

    async def leave(self) -> None:
        """Gives up the lead: no more Bindings begin here, so the next leader need not wait. Call it while `run` still
        runs.
        """
        self._election.leaving = True
        if self._settings.elects:
            await self._take_over.release()
        await self._lease.end()

    async def _begin(self, predecessors: Predecessors) -> None:
        """Begins without an election."""
        await predecessors.catch_up()
        self._election.standing = ElectionStanding(role=Role.LEADER)
        self._election.wake()
