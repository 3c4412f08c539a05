"""Keeps the election as it stands, and wakes the tasks that wait for a change."""

import asyncio
import logging
from collections.abc import Callable

from scheduler_ext.leadership.election import ElectionStanding, Role, after_time

log = logging.getLogger(__name__)


class LiveElection:
    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.standing = ElectionStanding()
        self.interrupted = ""
        """The problem of the watch of the Lease; empty without one."""
        self.leaving = False
        """True once this replica has given up the lead for good."""
        self.changed = asyncio.Event()
        """The event is set at the next change of leader or role, and then replaced."""
        self.monotonic = monotonic

    def move(self, standing: ElectionStanding) -> None:
        before, self.standing = self.standing, standing
        if before.role is not standing.role:
            log.info("this replica is now: %s (the lease is held by %s)", standing.role, standing.holder or "no one")
        if (before.role, before.holder) != (standing.role, standing.holder):
            self.wake()

    def pass_time(self) -> None:
        self.move(after_time(self.standing, self.monotonic()))

    def wake(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def leads(self) -> bool:
        """Returns whether this replica has the lead, by the Lease of the kube-scheduler beside it."""
        return not self.leaving and after_time(self.standing, self.monotonic()).role is Role.LEADER
