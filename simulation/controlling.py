"""Runs the stand-in controllers on the embedded API server (edge)."""

import asyncio
from collections.abc import Callable
from datetime import datetime

from simulation import controllers
from simulation.apiserver.errors import ApiRefusal
from simulation.apiserver.server import EmbeddedApiServer
from simulation.controllers import ControllerWrite, Create, Delete, JobRecord, Owned, Step

_TURN_SECONDS = 0.2


async def control(server: EmbeddedApiServer, refused: Callable[[str], None], now: Callable[[], datetime]) -> None:
    """Runs until it is cancelled. `refused` is called once for each sentence of a refusal."""
    records: dict[str, JobRecord] = {}
    owned, seen, told = Owned(), 0, set[str]()
    while True:
        await asyncio.sleep(_TURN_SECONDS)
        # A Job's deadline and the pause after a failure end without a write.
        if server.store.version == seen and not owned.jobs and not owned.replica_sets:
            continue
        owned = _owned(server, owned)
        seen = server.store.version
        steps, records = controllers.turn(owned, records, now())
        for step in steps:
            try:
                _perform(server, step)
            except ApiRefusal as refusal:
                if str(refusal) not in told:
                    told.add(str(refusal))
                    refused(str(refusal))


def _owned(server: EmbeddedApiServer, before: Owned) -> Owned:
    """Returns no pods while there is no owner, nor was one a turn ago: nothing of them is a controller's then."""
    objects = server.store.objects
    deployments, replica_sets, jobs = map(objects, ("deployments", "replicasets", "jobs"))
    none = not any((deployments, replica_sets, jobs, before.deployments, before.replica_sets, before.jobs))
    pods = () if none else objects("pods")
    return Owned(deployments=deployments, replica_sets=replica_sets, jobs=jobs, pods=pods)


def _perform(server: EmbeddedApiServer, step: Step) -> None:
    match step:
        case Create(item=item):
            server.create(item)
        case ControllerWrite(plural=plural, item=item, patch=patch, subresource=subresource):
            metadata = item["metadata"]
            server.patch(plural, metadata["name"], patch, namespace=metadata["namespace"], subresource=subresource)
        case Delete(plural=plural, item=item):
            metadata = item["metadata"]
            server.delete(plural, metadata["name"], namespace=metadata["namespace"], at_once=False)
