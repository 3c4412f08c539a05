"""Takes the extenders' own Lease over after a change of leaders, and hands it over to the next leader."""

import asyncio
import logging
from typing import Protocol

from scheduler_ext.leadership.binding_lease import BindingLease
from scheduler_ext.leadership.election import Role, after_another_had_the_turn, after_catching_up
from scheduler_ext.leadership.live_election import LiveElection

log = logging.getLogger(__name__)

_TAKE_RETRY_SECONDS = 0.5
_SETTLE_RETRY_SECONDS = 0.5


class Sender(Protocol):
    """Sends Bindings. It and the API server give up a Binding without an answer after `seconds`."""

    seconds: float

    async def written(self) -> bool:
        """Waits until no Binding is on its way. Returns whether none that was sent can still be carried out."""
        ...


class Predecessors(Protocol):
    """What this process knows of decisions before its lead, its own among them."""

    def forget_sent(self) -> None:
        """Forgets what was sent from here, because another process may have had the turn to write."""

    async def catch_up(self) -> None:
        """Returns when everything decided before is known."""


class TakeOver:
    def __init__(self, election: LiveElection, lease: BindingLease, sender: Sender) -> None:
        self._election = election
        self._lease = lease
        self._sender = sender

    async def run(self, predecessors: Predecessors) -> None:
        """Runs until cancelled."""
        election = self._election
        while True:
            changed = election.changed
            match election.standing.role:
                case _ if election.leaving:
                    await changed.wait()
                case Role.TAKING_OVER:
                    await _wait(changed, await self._taken_over(predecessors))
                case Role.LEADER if self._lease.is_held():
                    await _wait(changed, election.standing.expires_at - election.monotonic())
                case Role.LEADER:
                    election.move(after_another_had_the_turn(election.standing))
                case Role.FOLLOWER:
                    await _wait(changed, await self._handed_over())
            election.pass_time()

    async def release(self) -> None:
        """Gives the Lease up, unless a Binding may still be carried out."""
        if await self._sender.written():
            await self._lease.release()

    async def _taken_over(self, predecessors: Predecessors) -> float | None:
        """Returns seconds until the next try, unless something changes earlier."""
        holder, held_for = self._election.standing.holder, self._lease.held_for()
        if held_for is None:
            return None
        if held_for > 0:
            log.info("no decisions for up to %.0f s: %s may have Bindings under way", held_for, self._lease.holder())
            return held_for
        if not await self._lease.take(predecessors.forget_sent, settled=await self._sender.written()):
            return _TAKE_RETRY_SECONDS
        await predecessors.catch_up()
        if self._election.standing.holder == holder:
            self._election.move(after_catching_up(self._election.standing))
        return 0.0

    async def _handed_over(self) -> float | None:
        """Returns seconds until the next try; None to wait only for a change."""
        if not self._lease.is_held():
            return None
        if not await self._sender.written():
            return _SETTLE_RETRY_SECONDS
        await self._lease.release()
        return None


async def _wait(changed: asyncio.Event, seconds: float | None) -> None:
    """Waits for the change, but no longer than `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            await changed.wait()
    except TimeoutError:
        pass
