"""Runs the stand-in controllers on the embedded API server (edge)."""

import asyncio
from collections.abc import Callable
from datetime import datetime

from simulation.apiserver.errors import ApiRefusal
from simulation.apiserver.kinds import EVENT, KINDS, LEASE, WORKLOADS
from simulation.apiserver.server import EmbeddedApiServer
from simulation.controllers import turns
from simulation.controllers.jobs import JobRecord
from simulation.controllers.ownership import Objects
from simulation.controllers.steps import ControllerWrite, Create, Delete, Step

_TURN_SECONDS = 0.2
_TIMED = ("jobs", "cronjobs", "replicasets")
_UNSEEN = (EVENT, LEASE)
"""Kinds that own nothing and are written all the time."""


async def control(server: EmbeddedApiServer, refused: Callable[[str], None], now: Callable[[], datetime]) -> None:
    """Runs until it is cancelled. `refused` is called once for each sentence of a refusal."""
    records: dict[str, JobRecord] = {}
    busy, seen, told = False, 0, set[str]()
    while True:
        await asyncio.sleep(_TURN_SECONDS)
        # A time, a deadline and the pause after a failure come without a write. The last owner leaves its pods behind.
        if server.store.version == seen and not any(map(server.store.objects, _TIMED)):
            continue
        owners = any(server.store.objects(kind.plural) for kind in WORKLOADS)
        if not owners and not busy:
            continue
        busy, seen = owners, server.store.version
        steps, records = turns.turn(objects_of(server), records, now())
        for step in steps:
            try:
                perform(server, step)
            except ApiRefusal as refusal:
                if str(refusal) not in told:
                    told.add(str(refusal))
                    refused(str(refusal))


def objects_of(server: EmbeddedApiServer) -> Objects:
    """Returns what controllers see."""
    return {kind.plural: server.store.objects(kind.plural) for kind in KINDS if kind not in _UNSEEN}


def perform(server: EmbeddedApiServer, step: Step) -> None:
    """Raises ApiRefusal."""
    match step:
        case Create(item=item):
            server.create(item)
        case ControllerWrite(plural=plural, item=item, patch=patch, subresource=subresource):
            metadata = item["metadata"]
            namespace = metadata.get("namespace", "")
            server.patch(plural, metadata["name"], patch, namespace=namespace, subresource=subresource)
        case Delete(plural=plural, item=item, policy=policy):
            metadata = item["metadata"]
            options = {"propagationPolicy": policy, "preconditions": {"uid": metadata["uid"]}}
            server.delete(plural, metadata["name"], namespace=metadata.get("namespace", ""), options=options)
