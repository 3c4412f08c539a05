"""The stand-in for the controller of CronJobs (pure). Source: Kubernetes documentation, "CronJob"."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from simulation.controllers.jobs import end_of
from simulation.controllers.schedule import read_schedule
from simulation.controllers.steps import (
    Create,
    Delete,
    JsonObject,
    Step,
    child_of,
    is_leaving,
    name_of,
    status_of,
    status_written,
    written_time,
)

_SCHEDULED = "batch.kubernetes.io/cronjob-scheduled-timestamp"


def cron_job_steps(cron_job: JsonObject, jobs: list[JsonObject], now: datetime) -> Iterator[Step]:
    """Makes a Job at each time of the schedule, and deletes the oldest that are over."""
    spec, status = cron_job["spec"], dict(status_of(cron_job))
    running = [job for job in jobs if not end_of(job) and not is_leaving(job)]
    due = None if spec.get("suspend") else _due(cron_job, now)
    policy = spec["concurrencyPolicy"]
    if due is not None and not (running and policy == "Forbid"):
        if policy == "Replace":
            yield from (Delete("jobs", job) for job in running)
            running = []
        yield Create(_job(cron_job, due))
        status["lastScheduleTime"] = written_time(due)
    yield from _history(spec, jobs)
    succeeded = [ended["lastTransitionTime"] for job in jobs if (ended := end_of(job)) and ended["type"] == "Complete"]
    if succeeded:
        status["lastSuccessfulTime"] = max([*succeeded, status.get("lastSuccessfulTime", "")])
    status.pop("active", None)
    if running:
        status["active"] = [_reference(job) for job in running]
    yield from status_written("cronjobs", cron_job, status)


def _due(cron_job: JsonObject, now: datetime) -> datetime | None:
    """Returns the last time of the schedule for which there was no Job yet; None if there is none."""
    spec, metadata = cron_job["spec"], cron_job["metadata"]
    since = datetime.fromisoformat(status_of(cron_job).get("lastScheduleTime") or metadata["creationTimestamp"])
    deadline = spec.get("startingDeadlineSeconds")
    if deadline is not None:
        since = max(since, now - timedelta(seconds=deadline))
    zone = ZoneInfo(spec.get("timeZone") or "UTC")
    found = read_schedule(spec["schedule"]).latest(since.astimezone(UTC), now.astimezone(UTC), zone)
    return None if found is None else found.astimezone(now.tzinfo)


def _history(spec: JsonObject, jobs: list[JsonObject]) -> Iterator[Step]:
    for kind, field in (("Complete", "successfulJobsHistoryLimit"), ("Failed", "failedJobsHistoryLimit")):
        over = [job for job in jobs if (ended := end_of(job)) and ended["type"] == kind and not is_leaving(job)]
        over.sort(key=lambda job: (status_of(job).get("startTime") or "", name_of(job)))
        yield from (Delete("jobs", job) for job in over[: max(len(over) - spec[field], 0)])


def _job(cron_job: JsonObject, due: datetime) -> JsonObject:
    template = cron_job["spec"]["jobTemplate"]
    metadata = template.get("metadata") or {}
    annotations = (metadata.get("annotations") or {}) | {_SCHEDULED: written_time(due)}
    name = f"{name_of(cron_job)}-{int(due.timestamp()) // 60}"
    child = child_of(cron_job, name, metadata.get("labels") or {}, annotations)
    return {"kind": "Job", "apiVersion": "batch/v1", "metadata": child, "spec": template["spec"]}


def _reference(job: JsonObject) -> JsonObject:
    metadata = {key: job["metadata"][key] for key in ("name", "namespace", "uid")}
    return {"kind": "Job", "apiVersion": "batch/v1"} | metadata
