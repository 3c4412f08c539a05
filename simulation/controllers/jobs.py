"""The stand-in for the controller of Jobs (pure). Source: Kubernetes documentation, "Jobs"."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice

from simulation.controllers.steps import (
    INDEX,
    MOST_CREATED,
    Create,
    Delete,
    JsonObject,
    Step,
    is_ready,
    living,
    may_try,
    name_of,
    pod_of,
    status_of,
    status_written,
    uid_of,
    written_time,
)

_MANAGER = "kubernetes.io/job-controller"


@dataclass(frozen=True, slots=True)
class JobRecord:
    """The pods of one Job that have ended, by UID, with their index: they count also after somebody deleted them."""

    succeeded: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)


def recorded(record: JobRecord, pods: list[JsonObject]) -> JobRecord:
    found: dict[str, dict[str, str]] = {"Succeeded": dict(record.succeeded), "Failed": dict(record.failed)}
    for pod in pods:
        phase = status_of(pod).get("phase")
        if phase in found:
            found[phase][uid_of(pod)] = (pod["metadata"].get("annotations") or {}).get(INDEX, "")
    return JobRecord(found["Succeeded"], found["Failed"])


def job_steps(job: JsonObject, pods: list[JsonObject], record: JobRecord, now: datetime) -> Iterator[Step]:
    spec, status = job["spec"], status_of(job)
    if spec.get("managedBy", _MANAGER) != _MANAGER:
        return
    if end_of(job) is not None:
        yield from _expired(job, now)
        return
    there = living(pods)
    over = _outcome(job, there, record, now)
    stays = 0 if over is not None or spec.get("suspend") else spec["parallelism"]
    # First those that do not run.
    there.sort(key=is_ready, reverse=True)
    yield from (Delete("pods", pod) for pod in there[stays:])
    there = there[:stays]
    if stays and may_try(pods, now):
        yield from _more(job, there, record)
    started = {} if spec.get("suspend") else {"startTime": status.get("startTime") or written_time(now)}
    counts = {
        "active": len(there),
        "ready": sum(map(is_ready, there)),
        "succeeded": len(record.succeeded),
        "failed": len(record.failed),
    }
    fresh = started | {name: count for name, count in counts.items() if count}
    if spec.get("completionMode") == "Indexed" and record.succeeded:
        fresh["completedIndexes"] = _ranges(sorted(map(int, set(record.succeeded.values()))))
    if over is not None:
        kind, reason = over
        ended = {"completionTime": written_time(now)} if kind == "Complete" else {}
        condition = {"type": kind, "status": "True", "reason": reason, "lastTransitionTime": written_time(now)}
        fresh |= ended | {"conditions": [condition]}
    yield from status_written("jobs", job, fresh)


def _ranges(numbers: list[int]) -> str:
    """Returns `0-2,5,6`."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return ",".join(("-" if span[-1] > span[0] + 1 else ",").join(map(str, span)) for span in spans)


def end_of(job: JsonObject) -> JsonObject | None:
    """Returns the condition that ended the Job; None while it runs."""
    conditions = status_of(job).get("conditions") or []
    return next((one for one in conditions if one["type"] in {"Complete", "Failed"} and one["status"] == "True"), None)


def _outcome(job: JsonObject, there: list[JsonObject], record: JobRecord, now: datetime) -> tuple[str, str] | None:
    """Returns the condition that ends the Job, and its reason."""
    spec, status = job["spec"], status_of(job)
    containers = [one for pod in there for one in status_of(pod).get("containerStatuses") or []]
    restarts = sum(one.get("restartCount", 0) for one in containers)
    if len(record.failed) + restarts > spec["backoffLimit"]:
        return "Failed", "BackoffLimitExceeded"
    deadline, started = spec.get("activeDeadlineSeconds"), status.get("startTime")
    if deadline is not None and started and now >= datetime.fromisoformat(started) + timedelta(seconds=deadline):
        return "Failed", "DeadlineExceeded"
    completions = spec.get("completions")
    if completions is None:
        return ("Complete", "CompletionsReached") if record.succeeded and not there else None
    done = len(set(record.succeeded.values())) if spec.get("completionMode") == "Indexed" else len(record.succeeded)
    return ("Complete", "CompletionsReached") if done >= completions else None


def _more(job: JsonObject, there: list[JsonObject], record: JobRecord) -> Iterator[Step]:
    """Makes pods up to the parallelism, and no more than completions need."""
    spec = job["spec"]
    completions = spec.get("completions")
    room = spec["parallelism"] - len(there)
    if completions is None:
        room = 0 if record.succeeded else room
    elif spec.get("completionMode") != "Indexed":
        room = min(room, completions - len(record.succeeded) - len(there))
    else:
        taken = {(pod["metadata"].get("annotations") or {}).get(INDEX) for pod in there} | {*record.succeeded.values()}
        free = (index for index in range(completions) if str(index) not in taken)
        for index in islice(free, min(room, MOST_CREATED)):
            yield Create(pod_of(job, f"{name_of(job)}-{index}-", str(index)))
        return
    for _ in range(min(room, MOST_CREATED)):
        yield Create(pod_of(job, f"{name_of(job)}-"))


def _expired(job: JsonObject, now: datetime) -> Iterator[Step]:
    """Deletes a Job that is over, after the time that it names."""
    keep = job["spec"].get("ttlSecondsAfterFinished")
    if keep is not None:
        ended = datetime.fromisoformat(job["status"]["conditions"][0]["lastTransitionTime"])
        if now >= ended + timedelta(seconds=keep):
            yield Delete("jobs", job)
