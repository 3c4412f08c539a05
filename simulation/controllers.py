"""Stands in for the controllers of Deployments, ReplicaSets and Jobs: each turn creates, writes and deletes (pure).

A turn sees all objects and returns steps; the next turn sees what came of them. Source: Kubernetes documentation,
"Deployments", "ReplicaSet" and "Jobs"; fields of their status in the API reference of apps/v1 and batch/v1.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import ceil
from typing import Any

JsonObject = dict[str, Any]
_REVISION = "deployment.kubernetes.io/revision"
_INDEX = "batch.kubernetes.io/job-completion-index"
_KINDS = {"Deployment": "deployments", "ReplicaSet": "replicasets", "Job": "jobs"}
_LONGEST_PAUSE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Create:
    item: JsonObject


@dataclass(frozen=True, slots=True)
class ControllerWrite:
    """A merge patch of an object, or of its status."""

    plural: str
    item: JsonObject
    patch: JsonObject
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Delete:
    """A deletion; a pod has its time to stop."""

    plural: str
    item: JsonObject


Step = Create | ControllerWrite | Delete


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """The objects that controllers look at."""

    deployments: Sequence[JsonObject] = ()
    replica_sets: Sequence[JsonObject] = ()
    jobs: Sequence[JsonObject] = ()
    pods: Sequence[JsonObject] = ()


@dataclass(frozen=True, slots=True)
class JobRecord:
    """The pods of one Job that have ended, by UID, with their index: they count also after somebody deleted them."""

    succeeded: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)


def turn(owned: Owned, records: Mapping[str, JobRecord], now: datetime) -> tuple[list[Step], dict[str, JobRecord]]:
    """Returns the steps of all controllers, and what they remember of Jobs, by UID."""
    by_owner = _by_owner((*owned.replica_sets, *owned.pods))
    steps = list(_orphans(owned))
    for deployment in owned.deployments:
        steps += _deployment_steps(deployment, by_owner.get(_uid(deployment), []), now)
    for replica_set in owned.replica_sets:
        steps += _replica_set_steps(replica_set, by_owner.get(_uid(replica_set), []), now)
    remembered = {}
    for job in owned.jobs:
        pods = by_owner.get(_uid(job), [])
        record = remembered[_uid(job)] = _recorded(records.get(_uid(job), JobRecord()), pods)
        steps += _job_steps(job, pods, record, now)
    return steps, remembered


def _orphans(owned: Owned) -> Iterator[Step]:
    """Deletes what is left of owners that are gone."""
    there = {_uid(one) for one in (*owned.deployments, *owned.replica_sets, *owned.jobs)}
    for plural, items in (("replicasets", owned.replica_sets), ("pods", owned.pods)):
        for item in items:
            owner = _owner(item)
            if owner and owner["kind"] in _KINDS and owner["uid"] not in there and not _is_leaving(item):
                yield Delete(plural, item)


def _by_owner(items: Iterable[JsonObject]) -> dict[str, list[JsonObject]]:
    found: dict[str, list[JsonObject]] = {}
    for item in items:
        if owner := _owner(item):
            found.setdefault(owner["uid"], []).append(item)
    return found


# Deployments


def _deployment_steps(deployment: JsonObject, sets: list[JsonObject], now: datetime) -> Iterator[Step]:
    """Makes a ReplicaSet for each template, and moves pods to the newest within the limits of the strategy."""
    spec = deployment["spec"]
    digest = _digest(spec["template"])
    newest = next((one for one in sets if _labels(one).get("pod-template-hash") == digest), None)
    if spec.get("paused") and newest is None:
        return
    older = [one for one in sets if one is not newest]
    if newest is None:
        yield Create(
            _new_set(deployment, digest, _wanted_newest(spec, 0, older), 1 + max(map(_revision, sets), default=0))
        )
    else:
        if _revision(newest) < max(map(_revision, sets)):
            # A template that was used before, as `kubectl rollout undo` brings it back.
            yield ControllerWrite("replicasets", newest, _revised(1 + max(map(_revision, sets))))
        yield from _moved(spec, newest, older)
    revision = str(_revision(newest)) if newest else ""
    if revision and (deployment["metadata"].get("annotations") or {}).get(_REVISION) != revision:
        yield ControllerWrite("deployments", deployment, {"metadata": {"annotations": {_REVISION: revision}}})
    status = _deployment_status(deployment, newest, sets, now)
    if status != deployment.get("status"):
        yield ControllerWrite("deployments", deployment, {"status": _cleared(deployment, status)}, "status")


def _moved(spec: JsonObject, newest: JsonObject, older: list[JsonObject]) -> Iterator[Step]:
    wanted = _wanted_newest(spec, newest["spec"]["replicas"], older)
    if wanted != newest["spec"]["replicas"]:
        yield _resized(newest, wanted)
    _, unavailable = _limits(spec)
    ready = _ready(newest) + sum(map(_ready, older))
    spare = max(ready - (spec["replicas"] - unavailable), 0)
    for one in older:
        # Pods that are not ready cost nothing.
        fewer = min(one["spec"]["replicas"], one["spec"]["replicas"] - _ready(one) + spare)
        spare -= max(fewer - (one["spec"]["replicas"] - _ready(one)), 0)
        if fewer:
            yield _resized(one, one["spec"]["replicas"] - fewer)


def _wanted_newest(spec: JsonObject, now: int, older: list[JsonObject]) -> int:
    replicas, (surge, _) = int(spec["replicas"]), _limits(spec)
    others = sum(int(one["spec"]["replicas"]) for one in older)
    return replicas if now > replicas else min(replicas, max(now, replicas + surge - others))


def _limits(spec: JsonObject) -> tuple[int, int]:
    """Returns how many pods more, and how many fewer, a rollout may have."""
    strategy, replicas = spec.get("strategy") or {}, spec["replicas"]
    if strategy.get("type") == "Recreate":
        return 0, replicas
    rolling = strategy.get("rollingUpdate") or {}
    surge = _part(rolling.get("maxSurge", "25%"), replicas, up=True)
    unavailable = _part(rolling.get("maxUnavailable", "25%"), replicas, up=False)
    return surge, unavailable or int(surge == 0)


def _part(share: str | int, of: int, *, up: bool) -> int:
    if isinstance(share, int):
        return share
    exact = int(share.removesuffix("%")) * of / 100
    return ceil(exact) if up else int(exact)


def _resized(replica_set: JsonObject, replicas: int) -> Step:
    return ControllerWrite("replicasets", replica_set, {"spec": {"replicas": replicas}})


def _revised(revision: int) -> JsonObject:
    return {"metadata": {"annotations": {_REVISION: str(revision)}}}


def _new_set(deployment: JsonObject, digest: str, replicas: int, revision: int) -> JsonObject:
    spec, template = deployment["spec"], deployment["spec"]["template"]
    own = {"pod-template-hash": digest}
    metadata = template.get("metadata") or {}
    labels = (metadata.get("labels") or {}) | own
    return {
        "kind": "ReplicaSet",
        "apiVersion": "apps/v1",
        "metadata": _child(deployment, f"{_name(deployment)}-{digest}", labels, {_REVISION: str(revision)}),
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": ((spec.get("selector") or {}).get("matchLabels") or {}) | own},
            "template": template | {"metadata": metadata | {"labels": labels}},
        },
    }


def _deployment_status(
    deployment: JsonObject, newest: JsonObject | None, sets: list[JsonObject], now: datetime
) -> JsonObject:
    replicas, ready = deployment["spec"]["replicas"], sum(map(_ready, sets))
    updated = _status(newest).get("replicas", 0) if newest else 0
    complete = newest is not None and _ready(newest) == replicas == ready
    available = ready >= replicas - _limits(deployment["spec"])[1]
    enough = "MinimumReplicasAvailable" if available else "MinimumReplicasUnavailable"
    progress = "NewReplicaSetAvailable" if complete else "ReplicaSetUpdated"
    conditions = [
        _condition(deployment, "Available", available, enough, now),
        _condition(deployment, "Progressing", True, progress, now),
    ]
    counts = {
        "replicas": sum(_status(one).get("replicas", 0) for one in sets),
        "updatedReplicas": updated,
        "readyReplicas": ready,
        "availableReplicas": ready,
        "unavailableReplicas": max(replicas - ready, 0),
    }
    seen = {"observedGeneration": deployment["metadata"]["generation"]}
    return seen | {name: count for name, count in counts.items() if count} | {"conditions": conditions}


def _condition(item: JsonObject, kind: str, status: bool, reason: str, now: datetime) -> JsonObject:
    """Returns the condition; its time is that of its last change."""
    fresh = {"type": kind, "status": str(status), "reason": reason}
    for before in _status(item).get("conditions") or []:
        if before["type"] == kind and before["status"] == fresh["status"]:
            return fresh | {"lastTransitionTime": before["lastTransitionTime"]}
    return fresh | {"lastTransitionTime": _time(now)}


# ReplicaSets


def _replica_set_steps(replica_set: JsonObject, pods: list[JsonObject], now: datetime) -> Iterator[Step]:
    """Keeps as many pods as replicas that have neither ended nor been deleted."""
    living = [pod for pod in pods if not _has_ended(pod) and not _is_leaving(pod)]
    missing = replica_set["spec"]["replicas"] - len(living)
    if missing > 0 and _may_try(pods, now):
        for _ in range(missing):
            yield Create(_pod(replica_set, f"{_name(replica_set)}-"))
    # First those that do not run.
    for pod in sorted(living, key=_is_ready)[: max(-missing, 0)]:
        yield Delete("pods", pod)
    ready = sum(map(_is_ready, living))
    counts = {"fullyLabeledReplicas": len(living), "readyReplicas": ready, "availableReplicas": ready}
    status = {"replicas": len(living), "observedGeneration": replica_set["metadata"]["generation"]}
    status |= {name: count for name, count in counts.items() if count}
    if status != replica_set.get("status"):
        yield ControllerWrite("replicasets", replica_set, {"status": _cleared(replica_set, status)}, "status")


def _may_try(pods: list[JsonObject], now: datetime) -> bool:
    """Returns whether to make more: the pause doubles with each pod that failed."""
    failed = [pod for pod in pods if _status(pod).get("phase") == "Failed"]
    if not failed:
        return True
    pause = min(2.0 ** len(failed), _LONGEST_PAUSE_SECONDS)
    last = max(datetime.fromisoformat(pod["metadata"]["creationTimestamp"]) for pod in failed)
    return now >= last + timedelta(seconds=pause)


# Jobs


def _recorded(record: JobRecord, pods: list[JsonObject]) -> JobRecord:
    found: dict[str, dict[str, str]] = {"Succeeded": dict(record.succeeded), "Failed": dict(record.failed)}
    for pod in pods:
        phase = _status(pod).get("phase")
        if phase in found:
            found[phase][_uid(pod)] = (pod["metadata"].get("annotations") or {}).get(_INDEX, "")
    return JobRecord(found["Succeeded"], found["Failed"])


def _job_steps(job: JsonObject, pods: list[JsonObject], record: JobRecord, now: datetime) -> Iterator[Step]:
    spec, status = job["spec"], _status(job)
    if any(one["type"] in {"Complete", "Failed"} and one["status"] == "True" for one in status.get("conditions") or []):
        yield from _expired(job, now)
        return
    living = [pod for pod in pods if not _has_ended(pod) and not _is_leaving(pod)]
    over = _outcome(job, living, record, now)
    if over is not None or spec.get("suspend"):
        for pod in living:
            yield Delete("pods", pod)
        living = []
    elif _may_try(pods, now):
        yield from _more(job, living, record)
    started = {} if spec.get("suspend") else {"startTime": status.get("startTime") or _time(now)}
    counts = {
        "active": len(living),
        "ready": sum(map(_is_ready, living)),
        "succeeded": len(record.succeeded),
        "failed": len(record.failed),
    }
    fresh = started | {name: count for name, count in counts.items() if count}
    if spec.get("completionMode") == "Indexed" and record.succeeded:
        fresh["completedIndexes"] = ",".join(sorted(set(record.succeeded.values()), key=int))
    if over is not None:
        kind, reason = over
        ended = {"completionTime": _time(now)} if kind == "Complete" else {}
        condition = {"type": kind, "status": "True", "reason": reason, "lastTransitionTime": _time(now)}
        fresh |= ended | {"conditions": [condition]}
    if fresh != status:
        yield ControllerWrite("jobs", job, {"status": _cleared(job, fresh)}, "status")


def _outcome(job: JsonObject, living: list[JsonObject], record: JobRecord, now: datetime) -> tuple[str, str] | None:
    """Returns the condition that ends the Job, and its reason."""
    spec, status = job["spec"], _status(job)
    restarts = sum(one.get("restartCount", 0) for pod in living for one in _status(pod).get("containerStatuses") or [])
    if len(record.failed) + restarts > spec["backoffLimit"]:
        return "Failed", "BackoffLimitExceeded"
    deadline, started = spec.get("activeDeadlineSeconds"), status.get("startTime")
    if deadline is not None and started and now >= datetime.fromisoformat(started) + timedelta(seconds=deadline):
        return "Failed", "DeadlineExceeded"
    completions = spec.get("completions")
    if completions is None:
        return ("Complete", "CompletionsReached") if record.succeeded and not living else None
    done = len(set(record.succeeded.values())) if spec.get("completionMode") == "Indexed" else len(record.succeeded)
    return ("Complete", "CompletionsReached") if done >= completions else None


def _more(job: JsonObject, living: list[JsonObject], record: JobRecord) -> Iterator[Step]:
    """Makes pods up to the parallelism, and no more than completions need."""
    spec = job["spec"]
    completions = spec.get("completions")
    room = spec["parallelism"] - len(living)
    if completions is None:
        room = 0 if record.succeeded else room
    elif spec.get("completionMode") != "Indexed":
        room = min(room, completions - len(record.succeeded) - len(living))
    else:
        taken = {(pod["metadata"].get("annotations") or {}).get(_INDEX) for pod in living} | {
            *record.succeeded.values()
        }
        free = [index for index in range(completions) if str(index) not in taken]
        for index in free[: max(room, 0)]:
            yield Create(_pod(job, f"{_name(job)}-{index}-", str(index)))
        return
    for _ in range(room):
        yield Create(_pod(job, f"{_name(job)}-"))


def _expired(job: JsonObject, now: datetime) -> Iterator[Step]:
    """Deletes a Job that is over, after the time that it names."""
    keep = job["spec"].get("ttlSecondsAfterFinished")
    if keep is not None:
        ended = datetime.fromisoformat(job["status"]["conditions"][0]["lastTransitionTime"])
        if now >= ended + timedelta(seconds=keep):
            yield Delete("jobs", job)


# Objects


def _pod(owner: JsonObject, prefix: str, index: str = "") -> JsonObject:
    template = owner["spec"]["template"]
    metadata = template.get("metadata") or {}
    own = {_INDEX: index} if index else {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    child = _child(owner, "", labels | own, annotations | own) | {"generateName": prefix}
    spec = template["spec"] | ({"hostname": prefix.removesuffix("-")} if index else {})
    return {"kind": "Pod", "apiVersion": "v1", "metadata": child, "spec": spec}


def _child(owner: JsonObject, name: str, labels: JsonObject, annotations: JsonObject) -> JsonObject:
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": _name(owner),
        "uid": _uid(owner),
        "controller": True,
        "blockOwnerDeletion": True,
    }
    metadata = {"namespace": owner["metadata"]["namespace"], "labels": labels, "annotations": annotations}
    return metadata | {"ownerReferences": [reference]} | ({"name": name} if name else {})


def _owner(item: JsonObject) -> JsonObject | None:
    references = item["metadata"].get("ownerReferences") or []
    return next((one for one in references if one.get("controller")), None)


def _cleared(item: JsonObject, status: JsonObject) -> JsonObject:
    """Returns the status as a merge patch: what it has no more is null."""
    return dict.fromkeys(_status(item).keys() - status.keys()) | status


def _digest(template: JsonObject) -> str:
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]


def _revision(replica_set: JsonObject) -> int:
    return int((replica_set["metadata"].get("annotations") or {}).get(_REVISION, 0))


def _labels(item: JsonObject) -> JsonObject:
    labels: JsonObject = item["metadata"].get("labels") or {}
    return labels


def _status(item: JsonObject) -> JsonObject:
    status: JsonObject = item.get("status") or {}
    return status


def _ready(replica_set: JsonObject) -> int:
    return int(_status(replica_set).get("readyReplicas", 0))


def _is_ready(pod: JsonObject) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in _status(pod).get("conditions") or [])


def _has_ended(pod: JsonObject) -> bool:
    return _status(pod).get("phase") in {"Succeeded", "Failed"}


def _is_leaving(item: JsonObject) -> bool:
    return bool(item["metadata"].get("deletionTimestamp"))


def _name(item: JsonObject) -> str:
    return str(item["metadata"]["name"])


def _uid(item: JsonObject) -> str:
    return str(item["metadata"]["uid"])


def _time(now: datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")
