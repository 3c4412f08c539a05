"""The stand-in for the controller of Deployments (pure). Source: Kubernetes documentation, "Deployments"."""

from collections.abc import Iterator
from datetime import datetime

from simulation.controllers.steps import (
    MOST_CREATED,
    ControllerWrite,
    Create,
    Delete,
    JsonObject,
    Step,
    child_of,
    condition_of,
    digest_of,
    is_ready,
    labels_of,
    living,
    may_try,
    name_of,
    part_of,
    pod_of,
    status_of,
    status_written,
    written_time,
)

_REVISION = "deployment.kubernetes.io/revision"


def deployment_steps(deployment: JsonObject, sets: list[JsonObject], now: datetime) -> Iterator[Step]:
    """Makes a ReplicaSet for each template, and moves pods to the newest within the limits of the strategy."""
    spec = deployment["spec"]
    digest = digest_of(spec["template"])
    newest = next((one for one in sets if labels_of(one).get("pod-template-hash") == digest), None)
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
    unused = [one for one in older if not one["spec"]["replicas"] and not status_of(one).get("replicas")]
    for one in sorted(unused, key=_revision)[: max(len(unused) - spec["revisionHistoryLimit"], 0)]:
        yield Delete("replicasets", one)
    revision = str(_revision(newest)) if newest else ""
    if revision and (deployment["metadata"].get("annotations") or {}).get(_REVISION) != revision:
        yield ControllerWrite("deployments", deployment, {"metadata": {"annotations": {_REVISION: revision}}})
    yield from status_written("deployments", deployment, _deployment_status(deployment, newest, sets, now))


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
    surge = part_of(rolling.get("maxSurge", "25%"), replicas, up=True)
    unavailable = part_of(rolling.get("maxUnavailable", "25%"), replicas, up=False)
    return surge, unavailable or int(surge == 0)


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
        "metadata": child_of(deployment, f"{name_of(deployment)}-{digest}", labels, {_REVISION: str(revision)}),
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
    updated = status_of(newest).get("replicas", 0) if newest else 0
    complete = newest is not None and _ready(newest) == replicas == ready
    available = ready >= replicas - _limits(deployment["spec"])[1]
    enough = "MinimumReplicasAvailable" if available else "MinimumReplicasUnavailable"
    counts = {
        "replicas": sum(status_of(one).get("replicas", 0) for one in sets),
        "updatedReplicas": updated,
        "readyReplicas": ready,
        "availableReplicas": ready,
        "unavailableReplicas": max(replicas - ready, 0),
    }
    seen = {"observedGeneration": deployment["metadata"]["generation"]}
    status = seen | {name: count for name, count in counts.items() if count}
    conditions = [
        condition_of(deployment, "Available", available, enough, now),
        _progressing(deployment, status, complete, now),
    ]
    return status | {"conditions": conditions}


def _progressing(deployment: JsonObject, status: JsonObject, complete: bool, now: datetime) -> JsonObject:
    """Returns the condition with the time of the last change. A rollout fails after some time without one."""
    before, spec = status_of(deployment), deployment["spec"]
    known: JsonObject = next((one for one in before.get("conditions") or [] if one["type"] == "Progressing"), {})
    at = known.get("lastUpdateTime")
    if at is None or {name: count for name, count in before.items() if name != "conditions"} != status:
        at = written_time(now)
    waited = now - datetime.fromisoformat(at)
    late = not complete and not spec.get("paused") and waited.total_seconds() >= spec["progressDeadlineSeconds"]
    reason = "NewReplicaSetAvailable" if complete else "ProgressDeadlineExceeded" if late else "ReplicaSetUpdated"
    return condition_of(deployment, "Progressing", not late, reason, now) | {"lastUpdateTime": at}


def _revision(replica_set: JsonObject) -> int:
    return int((replica_set["metadata"].get("annotations") or {}).get(_REVISION, 0))


def _ready(replica_set: JsonObject) -> int:
    return int(status_of(replica_set).get("readyReplicas", 0))


def replica_set_steps(replica_set: JsonObject, pods: list[JsonObject], now: datetime) -> Iterator[Step]:
    """Keeps as many pods as replicas that have neither ended nor been deleted."""
    there = living(pods)
    missing = replica_set["spec"]["replicas"] - len(there)
    if missing > 0 and may_try(pods, now):
        for _ in range(min(missing, MOST_CREATED)):
            yield Create(pod_of(replica_set, f"{name_of(replica_set)}-"))
    # First those that do not run.
    for pod in sorted(there, key=is_ready)[: max(-missing, 0)]:
        yield Delete("pods", pod)
    ready = sum(map(is_ready, there))
    counts = {"fullyLabeledReplicas": len(there), "readyReplicas": ready, "availableReplicas": ready}
    status = {"replicas": len(there), "observedGeneration": replica_set["metadata"]["generation"]}
    status |= {name: count for name, count in counts.items() if count}
    yield from status_written("replicasets", replica_set, status)
