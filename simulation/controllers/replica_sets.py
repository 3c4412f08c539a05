"""The stand-in for the controller of ReplicaSets (pure). Source: Kubernetes documentation, "ReplicaSet"."""

from collections.abc import Iterator
from datetime import datetime

from simulation.controllers.steps import (
    ControllerWrite,
    Create,
    Delete,
    JsonObject,
    Step,
    cleared,
    has_ended,
    is_leaving,
    is_ready,
    may_try,
    name_of,
    pod_of,
)


def replica_set_steps(replica_set: JsonObject, pods: list[JsonObject], now: datetime) -> Iterator[Step]:
    """Keeps as many pods as replicas that have neither ended nor been deleted."""
    living = [pod for pod in pods if not has_ended(pod) and not is_leaving(pod)]
    missing = replica_set["spec"]["replicas"] - len(living)
    if missing > 0 and may_try(pods, now):
        for _ in range(missing):
            yield Create(pod_of(replica_set, f"{name_of(replica_set)}-"))
    # First those that do not run.
    for pod in sorted(living, key=is_ready)[: max(-missing, 0)]:
        yield Delete("pods", pod)
    ready = sum(map(is_ready, living))
    counts = {"fullyLabeledReplicas": len(living), "readyReplicas": ready, "availableReplicas": ready}
    status = {"replicas": len(living), "observedGeneration": replica_set["metadata"]["generation"]}
    status |= {name: count for name, count in counts.items() if count}
    if status != replica_set.get("status"):
        yield ControllerWrite("replicasets", replica_set, {"status": cleared(replica_set, status)}, "status")
