"""One turn of all stand-in controllers (pure): it sees all objects and returns steps; the next turn sees what came of
them. Fields of their status: API reference of apps/v1 and batch/v1.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from simulation.controllers.cron_jobs import cron_job_steps
from simulation.controllers.daemon_sets import daemon_set_steps
from simulation.controllers.deployments import deployment_steps, replica_set_steps
from simulation.controllers.jobs import JobRecord, job_steps, left_running, recorded
from simulation.controllers.ownership import Objects, claims, collected
from simulation.controllers.stateful_sets import stateful_set_steps
from simulation.controllers.steps import Delete, JsonObject, Step, is_leaving, owner_of, uid_of


def turn(objects: Objects, records: Mapping[str, JobRecord], now: datetime) -> tuple[list[Step], dict[str, JobRecord]]:
    """Returns the steps of all controllers, and what they remember of Jobs, by UID."""
    steps = list(collected(objects))
    gone = {uid_of(step.item) for step in steps if isinstance(step, Delete)}
    # The next turn sees what an owner has then.
    for owner, step in claims(objects):
        steps.append(step)
        gone.add(uid_of(owner))
    by_owner = _by_owner(item for plural in ("replicasets", "jobs", "pods") for item in objects[plural])

    def each(plural: str) -> Iterator[tuple[JsonObject, list[JsonObject]]]:
        for one in objects[plural]:
            if uid_of(one) not in gone and not is_leaving(one):
                yield one, by_owner.get(uid_of(one), [])

    for one, sets in each("deployments"):
        steps += deployment_steps(one, sets, now)
    for one, pods in each("replicasets"):
        steps += replica_set_steps(one, pods, now)
    for one, pods in each("statefulsets"):
        steps += stateful_set_steps(one, pods, objects["persistentvolumeclaims"])
    for one, pods in each("daemonsets"):
        steps += daemon_set_steps(one, pods, objects["nodes"])
    for one, jobs in each("cronjobs"):
        steps += cron_job_steps(one, jobs, now)
    gone |= {uid_of(step.item) for step in steps if isinstance(step, Delete)}
    remembered = {}
    for one, pods in each("jobs"):
        record = recorded(records.get(uid_of(one), JobRecord()), pods)
        mine = list(job_steps(one, pods, record, now))
        deleted = {uid_of(step.item) for step in mine if isinstance(step, Delete)}
        remembered[uid_of(one)] = left_running(record, pods, deleted)
        steps += mine
    return steps, remembered


def _by_owner(items: Iterable[JsonObject]) -> dict[str, list[JsonObject]]:
    found: dict[str, list[JsonObject]] = {}
    for item in items:
        if owner := owner_of(item):
            found.setdefault(owner["uid"], []).append(item)
    return found
