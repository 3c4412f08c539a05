"""The stand-in for the controller of Jobs (pure). Source: Kubernetes documentation, "Jobs"."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import islice

from simulation.controllers.steps import (
    INDEX,
    MOST_CREATED,
    Create,
    Delete,
    JsonObject,
    Step,
    condition_of,
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
    running: Mapping[str, str] = field(default_factory=dict)
    """The pods that were left to run. One that somebody else deletes has failed."""


def recorded(record: JobRecord, pods: list[JsonObject]) -> JobRecord:
    found: dict[str, dict[str, str]] = {"Succeeded": dict(record.succeeded), "Failed": dict(record.failed)}
    for pod in pods:
        phase = status_of(pod).get("phase")
        if phase in found:
            found[phase][uid_of(pod)] = _index(pod)
    there = {uid_of(pod) for pod in living(pods)}
    lost = record.running.keys() - there - found["Succeeded"].keys()
    found["Failed"] |= {uid: record.running[uid] for uid in lost}
    return JobRecord(found["Succeeded"], found["Failed"])


def left_running(record: JobRecord, pods: list[JsonObject], deleted: Collection[str]) -> JobRecord:
    """Returns the record with the pods that the controller does not delete itself."""
    running = {uid_of(pod): _index(pod) for pod in living(pods) if uid_of(pod) not in deleted}
    return replace(record, running=running)


def _index(pod: JsonObject) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(INDEX, ""))


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
    surplus = [pod for pod in there if _is_beyond(job, _index(pod))]
    # Pods that do not run go before those that do.
    there = sorted((pod for pod in there if pod not in surplus), key=is_ready, reverse=True)
    surplus += there[stays:]
    there = there[:stays]
    yield from (Delete("pods", pod) for pod in surplus)
    if stays and may_try(pods, now):
        yield from _more(job, there, record)
    started = {} if spec.get("suspend") else {"startTime": status.get("startTime") or written_time(now)}
    counts = {
        "active": len(there),
        "ready": sum(map(is_ready, there)),
        "succeeded": len(record.succeeded),
        "failed": len(record.failed) + (len(surplus) if over is not None and over[0] == "Failed" else 0),
    }
    fresh = started | {name: count for name, count in counts.items() if count}
    if spec.get("completionMode") == "Indexed" and record.succeeded:
        fresh["completedIndexes"] = _ranges(sorted(map(int, _done(job, record))))
    conditions = _suspension(job, now)
    if over is not None:
        kind, reason = over
        fresh |= {"completionTime": written_time(now)} if kind == "Complete" else {}
        conditions.append(condition_of(job, kind, True, reason, now))
    if conditions:
        fresh["conditions"] = conditions
    yield from status_written("jobs", job, fresh)


def _suspension(job: JsonObject, now: datetime) -> list[JsonObject]:
    """Returns the condition of a Job that is suspended, or was."""
    if job["spec"].get("suspend"):
        return [condition_of(job, "Suspended", True, "JobSuspended", now)]
    was = any(one["type"] == "Suspended" for one in status_of(job).get("conditions") or [])
    return [condition_of(job, "Suspended", False, "JobResumed", now)] if was else []


def _is_beyond(job: JsonObject, index: str) -> bool:
    """Returns whether the Job was made smaller than this index."""
    return bool(index) and int(index) >= (job["spec"].get("completions") or 0)


def _done(job: JsonObject, record: JobRecord) -> set[str]:
    return {index for index in record.succeeded.values() if index and not _is_beyond(job, index)}


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
    done = len(_done(job, record)) if spec.get("completionMode") == "Indexed" else len(record.succeeded)
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
        taken = {_index(pod) for pod in there} | {*record.succeeded.values()}
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
        ended = datetime.fromisoformat((end_of(job) or {})["lastTransitionTime"])
        if now >= ended + timedelta(seconds=keep):
            yield Delete("jobs", job)
