"""Follows the Lease of the kube-scheduler beside us (edge of the API server)."""

import logging

from proto.kubernetes.client import ApiServer
from proto.kubernetes.objects import LEASES, Lease
from proto.kubernetes.reflector import Interrupted, ObjectApplied, ObjectRemoved, ReflectorPace, Replaced, reflect
from scheduler_ext.leadership.election import after_lease
from scheduler_ext.leadership.live_election import LiveElection
from scheduler_ext.settings import LeaseSettings

log = logging.getLogger(__name__)

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
