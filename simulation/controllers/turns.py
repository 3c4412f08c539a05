"""One turn of all stand-in controllers (pure): it sees all objects and returns steps; the next turn sees what came of
them. Fields of their status: API reference of apps/v1 and batch/v1.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from simulation.controllers.cron_jobs import cron_job_steps
from simulation.controllers.daemon_sets import daemon_set_steps
from simulation.controllers.deployments import deployment_steps
from simulation.controllers.jobs import JobRecord, job_steps, recorded
from simulation.controllers.replica_sets import replica_set_steps
from simulation.controllers.stateful_sets import stateful_set_steps
from simulation.controllers.steps import Delete, JsonObject, Step, is_leaving, owner_of, uid_of

OWNERS = {
    "Deployment": "deployments",
    "ReplicaSet": "replicasets",
    "StatefulSet": "statefulsets",
    "DaemonSet": "daemonsets",
    "CronJob": "cronjobs",
    "Job": "jobs",
}
_OWNED = ("replicasets", "jobs", "pods")

Objects = Mapping[str, Sequence[JsonObject]]
"""All owners, pods and nodes, by the plural of their kind."""


def turn(objects: Objects, records: Mapping[str, JobRecord], now: datetime) -> tuple[list[Step], dict[str, JobRecord]]:
    """Returns the steps of all controllers, and what they remember of Jobs, by UID."""
    by_owner = _by_owner(item for plural in _OWNED for item in objects[plural])

    def owned(item: JsonObject) -> list[JsonObject]:
        return by_owner.get(uid_of(item), [])

    steps = list(_orphans(objects))
    for one in objects["deployments"]:
        steps += deployment_steps(one, owned(one), now)
    for one in objects["replicasets"]:
        steps += replica_set_steps(one, owned(one), now)
    for one in objects["statefulsets"]:
        steps += stateful_set_steps(one, owned(one))
    for one in objects["daemonsets"]:
        steps += daemon_set_steps(one, owned(one), objects["nodes"])
    for one in objects["cronjobs"]:
        steps += cron_job_steps(one, owned(one), now)
    remembered = {}
    deleted = [step.item for step in steps if isinstance(step, Delete)]
    for one in (job for job in objects["jobs"] if job not in deleted):
        record = remembered[uid_of(one)] = recorded(records.get(uid_of(one), JobRecord()), owned(one))
        steps += job_steps(one, owned(one), record, now)
    return steps, remembered


def _orphans(objects: Objects) -> Iterator[Step]:
    """Yields the deletion of what is left of owners that are gone."""
    there = {uid_of(one) for plural in OWNERS.values() for one in objects[plural]}
    for plural in _OWNED:
        for item in objects[plural]:
            owner = owner_of(item)
            if owner and owner["kind"] in OWNERS and owner["uid"] not in there and not is_leaving(item):
                yield Delete(plural, item)


def _by_owner(items: Iterable[JsonObject]) -> dict[str, list[JsonObject]]:
    found: dict[str, list[JsonObject]] = {}
    for item in items:
        if owner := owner_of(item):
            found.setdefault(owner["uid"], []).append(item)
    return found
