"""The rules of workloads, as the API server checks them (pure). Source: API reference of apps/v1 and batch/v1."""

import json
import re
from collections.abc import Iterator, Mapping
from zoneinfo import available_timezones

from simulation.apiserver.errors import JsonObject
from simulation.apiserver.kinds import CRON_JOB, DAEMON_SET, DEPLOYMENT, JOB, REPLICA_SET, STATEFUL_SET, ServedKind
from simulation.apiserver.selectors import selects
from simulation.controllers.schedule import BadSchedule, read_schedule

_COUNTS = (
    *("replicas", "minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds", "parallelism", "completions"),
    *("backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished", "startingDeadlineSeconds"),
    *("successfulJobsHistoryLimit", "failedJobsHistoryLimit"),
)
_ONE_OF = {
    "completionMode": ("Indexed", "NonIndexed"),
    "podManagementPolicy": ("OrderedReady", "Parallel"),
    "concurrencyPolicy": ("Allow", "Forbid", "Replace"),
}
_STRATEGIES: Mapping[ServedKind, tuple[str, tuple[str, ...]]] = {
    DEPLOYMENT: ("strategy", ("Recreate", "RollingUpdate")),
    STATEFUL_SET: ("updateStrategy", ("OnDelete", "RollingUpdate")),
    DAEMON_SET: ("updateStrategy", ("OnDelete", "RollingUpdate")),
}
_PERCENT = re.compile(r"[0-9]{1,9}%")
_MOST_INDEXED = 100_000
_LONGEST_CRON_JOB = 52
"""A Job of it has eleven characters more."""
_UNKNOWN = ("podFailurePolicy", "successPolicy", "backoffLimitPerIndex", "maxFailedIndexes")
"""Fields of Jobs that change what becomes of them, and that the stand-in for their controller does not know."""
_IGNORED = (
    ("minReadySeconds", 0),
    ("persistentVolumeClaimRetentionPolicy.whenScaled", "Retain"),
    ("updateStrategy.rollingUpdate.maxSurge", 0),
)
"""Fields of other workloads that their stand-ins do not know, with the value that changes nothing."""
_SELECTORS = {"In": True, "NotIn": True, "Exists": False, "DoesNotExist": False}
"""Operators, and whether they have values."""
_CHANGEABLE = {
    STATEFUL_SET: (
        *("replicas", "ordinals", "template", "updateStrategy", "revisionHistoryLimit"),
        *("persistentVolumeClaimRetentionPolicy", "minReadySeconds"),
    )
}
_FIXED: Mapping[ServedKind, tuple[str, ...]] = {
    DEPLOYMENT: ("selector",),
    REPLICA_SET: ("selector",),
    DAEMON_SET: ("selector",),
    JOB: ("completions", "completionMode", "selector", "template"),
}


def workload_problems(kind: ServedKind, item: JsonObject) -> Iterator[str]:
    """Yields what the API server refuses."""
    spec, where = item["spec"], "spec"
    if kind is CRON_JOB:
        yield from _cron_job_problems(item)
        kind, spec, where = JOB, spec["jobTemplate"]["spec"], "spec.jobTemplate.spec"
    if kind is JOB:
        yield from _job_problems(spec, where)
        if item["spec"] is spec:
            yield from _selector_problems(spec)
    else:
        yield from _selector_problems(spec)
        yield from _strategy_problems(kind, spec)
        yield from _unknown_problems(spec)
    if kind is DEPLOYMENT and spec["progressDeadlineSeconds"] <= spec.get("minReadySeconds", 0):
        found = spec["progressDeadlineSeconds"]
        yield f"spec.progressDeadlineSeconds: Invalid value: {found}: must be greater than minReadySeconds"
    if kind is STATEFUL_SET:
        yield from _stateful_set_problems(item)
    yield from _field_problems(spec, where)
    yield from _template_problems(spec, ("OnFailure", "Never") if kind is JOB else ("Always",), where)


def change_problems(kind: ServedKind, before: JsonObject, after: JsonObject) -> Iterator[str]:
    """Yields what of an existing workload may not be changed."""
    old, new = before["spec"], after["spec"]
    for field in _FIXED.get(kind, ()):
        if old.get(field) != new.get(field) and not _is_resized(field, new):
            yield f"spec.{field}: Invalid value: {json.dumps(new.get(field))}: field is immutable"
    if kind in _CHANGEABLE:
        allowed = _CHANGEABLE[kind]
        if any(old.get(field) != new.get(field) for field in {*old, *new} - {*allowed}):
            names = ", ".join(f"'{field}'" for field in allowed[:-1])
            yield (
                f"spec: Forbidden: updates to statefulset spec for fields other than {names} and '{allowed[-1]}' "
                "are forbidden"
            )


def _is_resized(field: str, new: JsonObject) -> bool:
    """Returns whether it is an indexed Job that gets as many completions as it runs pods at a time."""
    return field == "completions" and new.get("completionMode") == "Indexed" and new.get(field) == new["parallelism"]


def _field_problems(spec: JsonObject, where: str) -> Iterator[str]:
    for field in _COUNTS:
        if spec.get(field, 0) < 0:
            yield f"{where}.{field}: Invalid value: {spec[field]}: must be greater than or equal to 0"
    for field, allowed in _ONE_OF.items():
        if field in spec and spec[field] not in allowed:
            yield _unsupported(f"{where}.{field}", spec[field], allowed)


def _unsupported(where: str, found: str, allowed: tuple[str, ...]) -> str:
    supported = ", ".join(f'"{name}"' for name in allowed)
    return f'{where}: Unsupported value: "{found}": supported values: {supported}'


def _selector_problems(spec: JsonObject) -> Iterator[str]:
    """An owner that did not select its own pods would make more without end."""
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}
    selector = spec.get("selector") or {}
    if not (selector.get("matchLabels") or selector.get("matchExpressions")):
        yield "spec.selector: Required value"
        return
    for place, rule in enumerate(selector.get("matchExpressions") or []):
        if _SELECTORS.get(rule["operator"]) is not bool(rule.get("values")):
            found = json.dumps(rule["operator"])
            yield f"spec.selector.matchExpressions[{place}].operator: Invalid value: {found}: not a valid selector"
            return
    if not selects(selector, labels):
        problem = "`selector` does not match template `labels`"
        yield f"spec.template.metadata.labels: Invalid value: {json.dumps(labels)}: {problem}"


def _strategy_problems(kind: ServedKind, spec: JsonObject) -> Iterator[str]:
    field, types = _STRATEGIES.get(kind, ("", ()))
    strategy = spec.get(field) or {}
    if field and strategy["type"] not in types:
        yield _unsupported(f"spec.{field}.type", strategy["type"], types)
    rolling, where = strategy.get("rollingUpdate") or {}, f"spec.{field}.rollingUpdate"
    if rolling and strategy["type"] == "Recreate":
        yield f"{where}: Forbidden: may not be specified when strategy `type` is 'Recreate'"
        return
    if rolling and strategy["type"] == "OnDelete":
        yield f"{where}: Invalid value: {json.dumps(rolling)}: only allowed for updateStrategy 'RollingUpdate'"
    for name, value in rolling.items():
        if isinstance(value, str) and not _PERCENT.fullmatch(value):
            yield f"{where}.{name}: Invalid value: {json.dumps(value)}: a valid percent string must be a numeric string"
        elif isinstance(value, int) and value < 0:
            yield f"{where}.{name}: Invalid value: {value}: must be greater than or equal to 0"
        elif name == "maxUnavailable" and isinstance(value, str) and int(value.removesuffix("%")) > 100:
            yield f"{where}.{name}: Invalid value: {json.dumps(value)}: must not be greater than 100%"
    surge, unavailable = rolling.get("maxSurge"), rolling.get("maxUnavailable")
    if surge in (0, "0%") and unavailable in (0, "0%"):
        yield f"{where}.maxUnavailable: Invalid value: {json.dumps(unavailable)}: may not be 0 when `maxSurge` is 0"
    elif kind is DAEMON_SET and surge not in (None, 0, "0%") and unavailable not in (0, "0%"):
        problem = "may not be set when maxUnavailable is non-zero"
        yield f"{where}.maxSurge: Invalid value: {json.dumps(surge)}: {problem}"


def _unknown_problems(spec: JsonObject) -> Iterator[str]:
    for path, idle in _IGNORED:
        *outer, field = path.split(".")
        found = spec
        for name in outer:
            found = found.get(name) or {}
        if found.get(field, idle) not in (idle, f"{idle}%"):
            yield f"spec.{path}: Forbidden: the simulated controllers do not know it"


def _stateful_set_problems(stateful_set: JsonObject) -> Iterator[str]:
    name, start = stateful_set["metadata"]["name"], (stateful_set["spec"].get("ordinals") or {}).get("start") or 0
    if "." in name:
        yield f"metadata.name: Invalid value: {json.dumps(name)}: must not contain dots"
    if start < 0:
        yield f"spec.ordinals.start: Invalid value: {start}: must be greater than or equal to 0"


def _job_problems(spec: JsonObject, where: str) -> Iterator[str]:
    if spec.get("completionMode") == "Indexed" and "completions" not in spec:
        yield f"{where}.completions: Required value: when completion mode is Indexed"
    if spec.get("completionMode") == "Indexed" and spec["parallelism"] > _MOST_INDEXED:
        problem = f"must be less than or equal to {_MOST_INDEXED} when completion mode is Indexed"
        yield f"{where}.parallelism: Invalid value: {spec['parallelism']}: {problem}"
    manager = spec.get("managedBy", "kubernetes.io/job-controller")
    if not manager:
        yield f"{where}.managedBy: Required value"
    elif "/" not in manager:
        yield f"{where}.managedBy: Invalid value: {json.dumps(manager)}: must be a domain-prefixed path"
    for field in _UNKNOWN:
        if field in spec:
            yield f"{where}.{field}: Forbidden: the simulated controller of Jobs does not know it"


def _cron_job_problems(cron_job: JsonObject) -> Iterator[str]:
    spec, name = cron_job["spec"], cron_job["metadata"]["name"]
    if len(name) > _LONGEST_CRON_JOB:
        yield f"metadata.name: Invalid value: {json.dumps(name)}: must be no more than {_LONGEST_CRON_JOB} characters"
    yield from _field_problems(spec, "spec")
    schedule = spec.get("schedule")
    if not schedule:
        yield "spec.schedule: Required value"
    try:
        read_schedule(schedule or "@daily")
    except BadSchedule as problem:
        yield f"spec.schedule: Invalid value: {json.dumps(schedule)}: {problem}"
    zone = spec.get("timeZone")
    if zone is not None and zone not in available_timezones():
        yield f"spec.timeZone: Invalid value: {json.dumps(zone)}: unknown time zone {zone}"


def _template_problems(owner: JsonObject, policies: tuple[str, ...], where: str) -> Iterator[str]:
    spec = (owner.get("template") or {}).get("spec") or {}
    if not spec.get("containers"):
        yield f"{where}.template.spec.containers: Required value"
    policy = spec.get("restartPolicy") or "Always"
    if policy not in policies:
        yield _unsupported(f"{where}.template.spec.restartPolicy", policy, policies)
