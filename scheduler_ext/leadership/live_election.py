"""Keeps the election as the Lease of the kube-scheduler beside us shows it (edge of the API server).

Tasks that wait for a change are woken.
"""

import asyncio
import logging
from collections.abc import Callable

from proto.kubernetes.client import ApiServer
from proto.kubernetes.objects import LEASES, Lease
from proto.kubernetes.reflector import Interrupted, ObjectApplied, ObjectRemoved, ReflectorPace, Replaced, reflect
from scheduler_ext.leadership.election import ElectionStanding, Role, after_lease, after_time
from scheduler_ext.settings import LeaseSettings

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


_PACE = ReflectorPace(silent_seconds=5.0)
"""kube-scheduler renews every 1 to 2 s, and the holder of the Lease is known for 15 s. A dead connection must be found
before that.
"""


async def follow_lease(api: ApiServer, settings: LeaseSettings, election: LiveElection) -> None:
    """Follows the Lease until cancelled."""

    def saw(lease: Lease | None) -> None:
        election.move(after_lease(election.standing, lease, settings.identity, election.monotonic()))

    selection = f"metadata.name={settings.name}"
    async for change in reflect(api, LEASES, namespace=settings.namespace, field_selector=selection, pace=_PACE):
        election.interrupted = ""
        match change:
            case Replaced(leases):
                saw(next(iter(leases), None))
            case ObjectApplied(lease):
                saw(lease)
            case ObjectRemoved():
                saw(None)
            case Interrupted(problem, seconds):
                election.interrupted = f"the watch of the lease is interrupted: {problem}"
                log.warning("the watch of the lease is interrupted, next try in %.1f s: %s", seconds, problem)
