"""The types and defaults of workloads: Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs and CronJobs (pure).

Source: API reference of apps/v1 and batch/v1.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from proto.decoding import converted
from simulation.apiserver.errors import JsonObject, NotOfItsType, invalid
from simulation.apiserver.kinds import CRON_JOB, DAEMON_SET, DEPLOYMENT, JOB, REPLICA_SET, STATEFUL_SET, ServedKind

_Int32 = Annotated[int, Meta(ge=-(2**31), lt=2**31)]
_Names = dict[str, str] | None


class _Labelled(Struct):
    labels: _Names = None
    annotations: _Names = None


class _Template(Struct):
    metadata: _Labelled | None = None
    spec: JsonObject | None = None


class _Rule(Struct):
    key: str
    operator: str
    values: list[str] | None = None


class _Selected(Struct, rename="camel"):
    match_labels: _Names = None
    match_expressions: list[_Rule] | None = None


class _Rolling(Struct, rename="camel"):
    max_surge: _Int32 | str | None = None
    max_unavailable: _Int32 | str | None = None
    partition: _Int32 | None = None


class _Strategy(Struct, rename="camel"):
    type: str | None = None
    rolling_update: _Rolling | None = None


class _Ordinals(Struct):
    start: _Int32 | None = None


class _JobTemplate(Struct):
    metadata: _Labelled | None = None
    spec: "_WorkloadSpec | None" = None


class _WorkloadSpec(Struct, rename="camel"):
    """The fields of all kinds of workloads that controllers read. A field of one kind has no other type in another."""

    replicas: _Int32 | None = None
    min_ready_seconds: _Int32 | None = None
    revision_history_limit: _Int32 | None = None
    progress_deadline_seconds: _Int32 | None = None
    parallelism: _Int32 | None = None
    completions: _Int32 | None = None
    backoff_limit: _Int32 | None = None
    active_deadline_seconds: int | None = None
    ttl_seconds_after_finished: _Int32 | None = None
    starting_deadline_seconds: int | None = None
    successful_jobs_history_limit: _Int32 | None = None
    failed_jobs_history_limit: _Int32 | None = None
    completion_mode: str | None = None
    pod_management_policy: str | None = None
    concurrency_policy: str | None = None
    service_name: str | None = None
    schedule: str | None = None
    time_zone: str | None = None
    managed_by: str | None = None
    suspend: bool | None = None
    paused: bool | None = None
    selector: _Selected | None = None
    template: _Template | None = None
    strategy: _Strategy | None = None
    update_strategy: _Strategy | None = None
    ordinals: _Ordinals | None = None
    job_template: _JobTemplate | None = None
    volume_claim_templates: list[_Template] | None = None


def typed_spec(spec: Any) -> JsonObject:
    """Returns the spec without what is null. Raises NotOfItsType."""
    try:
        converted(spec, _WorkloadSpec | None)
    except msgspec.ValidationError as error:
        raise NotOfItsType(f"spec: {error}") from error
    return {key: value for key, value in (spec or {}).items() if value is not None}


def completed_spec(kind: ServedKind, spec: JsonObject) -> JsonObject:
    """Returns the spec with the fields that its author left out."""
    spec = dict(_DEFAULTS[kind] | spec)
    if kind is JOB and "parallelism" not in spec:
        spec = {"completions": 1, **spec, "parallelism": 1}
    for field, rolling in _ROLLING.get(kind, {}).items():
        strategy: JsonObject = {"type": "RollingUpdate"} | spec.get(field, {})
        if strategy["type"] == "RollingUpdate":
            strategy["rollingUpdate"] = rolling | (strategy.get("rollingUpdate") or {})
        spec[field] = strategy
    return spec


_DEFAULTS: Mapping[ServedKind, JsonObject] = {
    DEPLOYMENT: {"replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600},
    REPLICA_SET: {"replicas": 1},
    STATEFUL_SET: {"replicas": 1, "podManagementPolicy": "OrderedReady", "revisionHistoryLimit": 10},
    DAEMON_SET: {"revisionHistoryLimit": 10},
    JOB: {"backoffLimit": 6, "completionMode": "NonIndexed", "suspend": False},
    CRON_JOB: {
        "concurrencyPolicy": "Allow",
        "suspend": False,
        "successfulJobsHistoryLimit": 3,
        "failedJobsHistoryLimit": 1,
    },
}
_ROLLING: Mapping[ServedKind, Mapping[str, JsonObject]] = {
    DEPLOYMENT: {"strategy": {"maxSurge": "25%", "maxUnavailable": "25%"}},
    STATEFUL_SET: {"updateStrategy": {"partition": 0}},
    DAEMON_SET: {"updateStrategy": {"maxUnavailable": 1, "maxSurge": 0}},
}


_METADATA = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def scale_of(item: JsonObject) -> JsonObject:
    """Returns the Scale of an object."""
    metadata = {key: item["metadata"][key] for key in _METADATA if key in item["metadata"]}
    selected = (item["spec"].get("selector") or {}).get("matchLabels") or {}
    selector = ",".join(f"{key}={value}" for key, value in sorted(selected.items()))
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": metadata,
        "spec": {"replicas": item["spec"].get("replicas", 1)},
        "status": {"replicas": (item.get("status") or {}).get("replicas", 0), "selector": selector},
    }


def scaled_replicas(kind: ServedKind, body: JsonObject) -> int:
    """Returns the replicas that a Scale wants. Raises ApiRefusal."""
    wanted = (body.get("spec") or {}).get("replicas", 0)
    if not isinstance(wanted, int) or wanted < 0:
        name = str((body.get("metadata") or {}).get("name", ""))
        raise invalid(kind, name, f"spec.replicas: Invalid value: {wanted}: must be greater than or equal to 0")
    return wanted
