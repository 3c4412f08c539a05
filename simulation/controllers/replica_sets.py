"""The stand-in for the controller of ReplicaSets (pure). Source: Kubernetes documentation, "ReplicaSet"."""

from collections.abc import Iterator
from datetime import datetime

from simulation.controllers.steps import (
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
    status_written,
)


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
